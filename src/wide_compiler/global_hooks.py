"""Hooks on all modules (`register_module_forward_hook` and its kin): are there any but this library's own?

Whoever runs modules otherwise than one by one must know: a hook sees every call.
"""

from typing import Any

from torch.nn.modules import module as pytorch

# Hooks and descriptors of this library that do nothing to a module called with plain tensors.
HARMLESS: list[Any] = []


def foreign_hooks() -> bool:
    """Does a hook see all modules, that may do anything?"""
    if not pytorch._has_any_global_hook():
        return False
    tables: list[dict[int, Any]] = [
        pytorch._global_forward_pre_hooks,
        pytorch._global_forward_hooks,
        pytorch._global_backward_pre_hooks,
        pytorch._global_backward_hooks,
    ]
    return any(all(hook is not own for own in HARMLESS) for table in tables for hook in table.values())
