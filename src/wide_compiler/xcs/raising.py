"""Exceptions as the text of a site raises them where it stands."""

import sys
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from .text.site_text import SiteText

INLINED = sys.version_info >= (3, 12)


def as_written(text: SiteText, original: Any, plain: Any, source: Any) -> Any:
    """Run the text. Where Python inlines comprehensions, an unset name is a local one for it."""
    error = None
    try:
        return plain(source)
    except NameError as raised:
        error = _unset_local(text, original, raised, plain) if INLINED else None
        if error is None:
            raise
    raise error


def _unset_local(text: SiteText, original: Any, error: NameError, plain: Any) -> UnboundLocalError | None:
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    here = last is not None and last.tb_frame.f_code is plain.__code__
    outer = original.__code__.co_freevars
    own = error.name in plain.__code__.co_freevars and error.name not in outer
    if text.kind == "generator" or type(error) is not NameError or not (here and own):
        return None
    return UnboundLocalError(
        f"cannot access local variable {error.name!r} where it is not associated with a value"
    )


def raise_here(error: BaseException) -> NoReturn:
    """Raise what an item raised, maybe in another thread, with the context that it would have had here: after
    all of its own, what is being handled."""
    own, handled = chain(error), chain(sys.exc_info()[1])
    if handled and own[-1].__context__ is None and not any(one is other for one in own for other in handled):
        own[-1].__context__ = handled[0]
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context  # which raising it has replaced
        del error, context, own, handled


def chain(error: BaseException | None) -> list[BaseException]:
    """It, what was being handled when it was raised, and so on."""
    found: list[BaseException] = []
    while error is not None and not any(error is one for one in found):
        found.append(error)
        error = error.__context__
    return found


def then_raises(values: Iterable[Any], error: BaseException) -> Iterator[Any]:
    """A generator whose item raises: who eats it has had the values before, and done its work on them."""
    yield from values
    raise_here(error)


def raises(error: BaseException) -> Iterable[Any]:
    """An iterable that raises at once: after the totals of the items before are stored."""
    raise_here(error)
    yield
