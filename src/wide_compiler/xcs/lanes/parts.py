"""A site's body, run part by part: by itself for the first part, by its tape for those that look the same."""

from typing import Any

from ..work import Work
from .handout import Handout
from .part_tape import PartTape
from .paths import Body, Paths


class Parts:
    """All parts of one call with `n` items, in order. `several`: is there more than one?"""

    def __init__(self, work: Work, n: int, several: bool):
        self.work, self.several = work, several
        self.body = Body(work)
        self.handout = Handout(n, work.site.config.exact)
        self.tape: PartTape | None = None

    def values(self, columns: list[Any], n: int) -> list[Any]:
        """What the next n items give. Raises `Bail`."""
        if self.tape is not None and self.tape.fits(columns):
            return self.tape.values(columns, n, self.handout)
        paths = Paths(self.work, columns, n, self.body, self.handout, taping=self.several)
        paths.run(None)
        self.tape = paths.tape
        return paths.values()
