"""The submodules of a router, as a mapping."""

from collections.abc import Iterator, MutableMapping

from torch import nn


class Components(MutableMapping[str, nn.Module]):
    """A router's submodules by name, without `stages`; assigning an item adds a submodule."""

    def __init__(self, router: nn.Module):
        self.router = router

    def __getitem__(self, name: str) -> nn.Module:
        return self._parts()[name]

    def __setitem__(self, name: str, module: nn.Module) -> None:
        setattr(self.router, name, module)

    def __delitem__(self, name: str) -> None:
        delattr(self.router, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts())

    def __len__(self) -> int:
        return len(self._parts())

    def _parts(self) -> dict[str, nn.Module]:
        own = self.router._modules.items()
        return {name: part for name, part in own if part is not None and name != "stages"}
