"""Detection of global module hooks (`register_module_forward_hook` etc.) other than this library's.

Code that does not call modules one by one must check for them, since a hook expects to see every call.
"""

from typing import Any

from torch.nn.modules import module as pytorch

# Hooks of this library that have no effect on a module called with plain tensors.
HARMLESS: list[Any] = []


def foreign_hooks() -> bool:
    """Return whether any global hook is not this library's."""
    if not pytorch._has_any_global_hook():
        return False
    tables: list[dict[int, Any]] = [
        pytorch._global_forward_pre_hooks,
        pytorch._global_forward_hooks,
        pytorch._global_backward_pre_hooks,
        pytorch._global_backward_hooks,
    ]
    return any(all(hook is not own for own in HARMLESS) for table in tables for hook in table.values())
