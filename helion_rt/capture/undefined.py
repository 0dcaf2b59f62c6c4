"""``Undefined``: what a variable holds that has no value after, or before, a loop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from ..exc import Unsupported

if TYPE_CHECKING:
    from .tracer import Tracer


class Undefined:
    """The value of a variable that has none, and why. Any use is an error."""

    def __init__(self, tracer: Tracer, name: str, why: str, hint: str | None = None) -> None:
        self._tracer: Tracer
        self._name: str
        self._why: str
        self._hint: str | None
        self.__dict__.update(_tracer=tracer, _name=name, _why=why, _hint=hint)

    def _fail(self, *_: object, **__: object) -> NoReturn:
        raise self._tracer.error(Unsupported, f"variable '{self._name}' {self._why}", self._hint)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        stack = [args, kwargs or {}]
        while stack:
            item = stack.pop()
            if isinstance(item, Undefined):
                item._fail()
            stack.extend(item.values() if isinstance(item, dict) else item if isinstance(item, (tuple, list)) else ())
        raise TypeError("an undefined variable is used")

    def __getattr__(self, name: str) -> NoReturn:
        self._fail()

    __call__ = __getitem__ = __setitem__ = __iter__ = __len__ = __bool__ = __int__ = __float__ = __index__ = _fail
    __setattr__ = __neg__ = __lt__ = __le__ = __gt__ = __ge__ = __str__ = __repr__ = __format__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _fail
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _fail
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = __abs__ = _fail
