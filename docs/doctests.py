"""For the API reference: examples in docstrings (`>>>`) are shown as code."""

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Puts a heading `Examples:` above the first `>>>` of a docstring."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if (
            not obj.docstring
            or "\n>>> " not in obj.docstring.value
            or "Examples:" in obj.docstring.value
        ):
            return
        before, _, after = obj.docstring.value.partition("\n>>> ")
        after, *rest = after.split("\n\n", 1) if "\n\n" in after else [after]
        example = "".join(f"\n    {line}" for line in f">>> {after}".splitlines())
        obj.docstring.value = "\n\n".join([f"{before}\n\nExamples:{example}", *rest])
