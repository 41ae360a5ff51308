"""How small functions of event loops are compiled: without counting references to the arrays that they borrow."""

from collections.abc import Callable
from typing import TypeVar

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def borrowing(inline: bool = True) -> Callable[[Function], Function]:
    """Compile a function that makes no array, list or view that outlives it; ``inline`` it into its callers.

    numba counts a reference to each array of each named tuple at every call, atomically: of the decoder's sixty
    arrays that took more than half of the time.
    """
    return njit(cache=True, forceinline=inline, _nrt=False)  # type: ignore[call-overload]
