"""Parses signals from YAML; checked by pydantic, which is imported only when a file is read."""

from typing import Any

import yaml

from ..errors import ArgumentError
from .signal_config import ShardConfig, SignalConfig, mesh_of_dimensions


class _Loader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: dict[Any, int] = {}
        for key, _ in node.value:
            name, line = self.construct_object(key, deep=True), key.start_mark.line + 1
            if name in seen:
                raise yaml.YAMLError(
                    f"{name!r} is there twice, in lines {seen[name]} and {line}; remove one of them"
                )
            seen[name] = line
        return super().construct_mapping(node, deep)


def parse_signals(text: str, source: str) -> dict[str, SignalConfig]:
    """Return the signals of a YAML text; every error names the full path of the wrong key."""
    from pydantic import BaseModel, ConfigDict, StrictBool, StrictStr, ValidationError

    class Shard(BaseModel):  # values are checked by ShardConfig
        model_config = ConfigDict(extra="forbid")
        axis: Any = 0
        workers: Any
        parameters: Any = None

    class Signal(BaseModel):
        model_config = ConfigDict(extra="forbid")
        shard: Shard | None = None
        backward: StrictStr | None = None
        compile: StrictBool = False

    class OnGrid(Signal):
        shard: list[Shard]  # type: ignore[assignment]

    try:
        document = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ArgumentError(f"{source} is not YAML: {error}") from None
    if not document:
        raise ArgumentError(
            f"{source} is empty; it should map names of signals to shard, backward and compile"
        )
    if not isinstance(document, dict):
        raise ArgumentError(
            f"{source} should map names of signals to settings, got a {type(document).__name__}"
        )
    signals = {}
    for name, content in document.items():
        if not isinstance(name, str):
            raise ArgumentError(f"{source}: the name of a signal must be a string, got {name!r}")
        try:
            on_grid = isinstance(content, dict) and isinstance(content.get("shard"), list)
            read = (OnGrid if on_grid else Signal).model_validate({} if content is None else content)
            shard = _shard(read.shard)
        except ValidationError as error:
            raise ArgumentError(_explain(source, name, error.errors(), Signal, Shard)) from None
        except ValueError as error:
            raise ArgumentError(f"{source}: {name}.{error}") from None
        signals[name] = SignalConfig(shard, read.backward, read.compile)
    return signals


def _shard(read: Any) -> ShardConfig | None:
    if isinstance(read, list):
        return mesh_of_dimensions([dimension.model_dump(exclude_unset=True) for dimension in read])
    return None if read is None else ShardConfig(read.axis, read.workers, read.parameters)


def _explain(source: str, name: str, errors: list[Any], signal: Any, shard: Any) -> str:
    lines = []
    for error in errors:
        path = ".".join([name, *(str(part) for part in error["loc"])])
        if error["type"] == "extra_forbidden":
            allowed = shard.model_fields if "shard" in error["loc"][:1] else signal.model_fields
            lines.append(f"{path}: unknown key; known are {', '.join(allowed)}")
        else:
            lines.append(f"{path}: {error['msg'].lower()}, got {error['input']!r}")
    return f"{source}: " + "; ".join(lines)
