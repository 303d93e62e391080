"""What `CompileRouter` found in a model: which modules go together, which do not, and why."""

import io
from dataclasses import dataclass, field


@dataclass
class PlannedGroup:
    """Calls of modules of one structure that do not wait for each other.

    Attributes:
        paths: the modules, one for each call.
        kind: their class.
        stage: calls of an earlier stage come first; 0 while that is not known.
        parameters: how many numbers they hold, all together.
        how: 'together' as lanes, 'in sequence', or 'not run' yet.
        why: what that was decided by.
        ms: what was measured.
    """

    paths: tuple[str, ...]
    kind: str
    stage: int = 0
    parameters: int = 0
    how: str = "not run"
    why: str = ""
    ms: dict[str, float] = field(default_factory=dict)


@dataclass
class Declined:
    """Modules of one structure that do not go together."""

    paths: tuple[str, ...]
    kind: str
    why: str


@dataclass
class Plan:
    """Groups in the order in which they run.

    Attributes:
        groups: what goes together.
        declined: alike modules that do not, with the reason.
        why: why the model runs as it is; empty if the plan runs.
        settled: False while no input has been seen: the groups are then guesses from structure alone.
    """

    groups: list[PlannedGroup] = field(default_factory=list)
    declined: list[Declined] = field(default_factory=list)
    why: str = ""
    settled: bool = True
    ms: dict[str, float] = field(default_factory=dict)

    @property
    def stages(self) -> list[list[PlannedGroup]]:
        """The groups by stage."""
        numbers = sorted({group.stage for group in self.groups})
        return [[group for group in self.groups if group.stage == number] for number in numbers]

    @property
    def parameters(self) -> int:
        """How many numbers are in groups."""
        return sum(group.parameters for group in self.groups)

    @property
    def together(self) -> int:
        """How many calls ran as lanes."""
        return sum(len(group.paths) for group in self.groups if group.how == "together")

    def __str__(self) -> str:
        from rich.console import Console
        from rich.table import Table

        title = "plan" if self.settled else "plan from structure alone; an input settles it"
        if self.why:
            title = f"the model runs as it is: {self.why}"
        table = Table(title=title, title_justify="left")
        for column in ("stage", "modules", "kind", "parameters", "how", "why"):
            table.add_column(column, overflow="fold")
        for group in self.groups:
            count = f"{group.parameters:,}"
            table.add_row(str(group.stage), ", ".join(group.paths), group.kind, count, group.how, group.why)
        for other in self.declined:
            table.add_row("", ", ".join(other.paths), other.kind, "", "apart", other.why)
        buffer = io.StringIO()
        Console(file=buffer, width=130).print(table)
        return buffer.getvalue()
