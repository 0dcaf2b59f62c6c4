"""Hints: while PyTorch is asked for shapes, every block size is a prime of its own, and a dimension tells where it came from.

The primes divide no dimension of the arguments and no integer of the source, so a dimension that they divide is a
product of block sizes and a constant. A dimension that is no such product (``block + 1``) gets a prime of its own when it
is made. What cannot be told apart this way (a sum that PyTorch made, a hint that leaked into a number) shows when the
capture is repeated with other primes and gives another program (see ``engine``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from ..program.expr import Block, Expr, binary, blocks_in

# One a capture of the same kernel; far enough apart that their primes differ.
FIRST_HINTS = (4099, 6007, 9001)


def primes(start: int) -> Iterator[int]:
    """Primes from ``start``, which is odd."""
    candidate = start
    while True:
        if all(candidate % d for d in range(3, int(candidate**0.5) + 1, 2)):
            yield candidate
        candidate += 2


class Hints:
    """Which prime stands for which dimension, and back."""

    def __init__(self, avoid: Iterable[int], first: int) -> None:
        self._avoid = frozenset(abs(n) for n in avoid if abs(n) >= first)
        self._primes = primes(first)
        self._expr_of: dict[int, Expr] = {}
        self._hint_of: dict[Expr, int] = {}
        self._decoded: dict[int, Expr] = {}
        self._tiles: dict[int, int] = {}

    def _fresh(self) -> int:
        return next(p for p in self._primes if not any(n % p == 0 for n in self._avoid))

    def encode(self, expr: Expr) -> int:
        """The number that stands for ``expr``."""
        if isinstance(expr, int):
            return expr
        if expr not in self._hint_of:
            product = self._product(expr)
            if product is None:
                product = self._fresh()
                self._expr_of[product] = expr
                self._decoded.clear()
            self._hint_of[expr] = product
        return self._hint_of[expr]

    def _product(self, expr: Expr) -> int | None:
        if isinstance(expr, int):
            return expr
        if isinstance(expr, Block):
            return self._hint_of.get(expr)
        if expr.op != "*":
            return self._hint_of.get(expr)
        a, b = self._product(expr.a), self._product(expr.b)
        return None if a is None or b is None else a * b

    def decode(self, value: int) -> Expr:
        """The expression that ``value`` stands for; a plain int if it is nothing but that."""
        found = self._decoded.get(value)
        if found is None:
            found = self._decoded[value] = self._factor(value)
        return found

    def _factor(self, value: int) -> Expr:
        rest, factors = abs(value), []
        for prime, expr in self._expr_of.items():
            while rest and rest % prime == 0:
                rest //= prime
                factors.append(expr)
        if not factors:
            return value
        product: Expr = 1
        for factor in factors:
            product = binary("*", product, factor)
        return binary("*", product, rest if value > 0 else -rest)

    def tile(self, size: int) -> int:
        """A number for a tile whose dimension is ``size``: not the same, so that the tile is known from its size."""
        hint = self._fresh()
        self._tiles[hint] = size
        return hint

    def is_tile(self, value: int) -> bool:
        return value in self._tiles

    def size_of(self, value: int) -> int:
        """``value``, or the dimension of the tile that it stands for."""
        return self._tiles.get(value, value)


_ASSERT = "assert a comparison (`assert n % block == 0`): configs that break it are not used; min() and max() work too"


class Dim(int):
    """A dimension that depends on block sizes: an int to PyTorch (its hint), an expression to the program.

    Arithmetic gives dimensions again. What would need its value (comparing, ``bool``, ``float``) is refused.
    """

    expr: Expr
    hints: Hints
    refuse: Callable[[str, str | None], NoReturn]

    def __new__(cls, expr: Expr, hints: Hints, refuse: Callable[[str, str | None], NoReturn]) -> Dim:
        self = int.__new__(cls, hints.encode(expr))
        self.expr, self.hints, self.refuse = expr, hints, refuse
        return self

    def __repr__(self) -> str:
        return str(self.expr)

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(str(self.expr), spec)

    def __reduce__(self) -> NoReturn:
        self._needed("copied")

    __hash__ = int.__hash__

    def _needed(self, use: str, hint: str | None = None) -> NoReturn:
        self.refuse(f"'{self.expr}' is {use}, but it depends on the block size, which is chosen later", hint)

    def _binary(self, op: str, other: object, swapped: bool = False) -> Any:
        if isinstance(other, float):
            self._needed("used in arithmetic with floats")
        if not isinstance(other, int) or (type(other).__module__ != __name__ and type(other) not in (int, bool)):
            return NotImplemented
        a: Expr = self.expr
        b: Expr = other.expr if isinstance(other, Dim) else int(other)
        return make_dim(binary(op, b, a) if swapped else binary(op, a, b), self.hints, self.refuse)

    def __add__(self, other: object) -> Any:
        return self._binary("+", other)

    def __radd__(self, other: object) -> Any:
        return self._binary("+", other, swapped=True)

    def __sub__(self, other: object) -> Any:
        return self._binary("-", other)

    def __rsub__(self, other: object) -> Any:
        return self._binary("-", other, swapped=True)

    def __mul__(self, other: object) -> Any:
        return self._binary("*", other)

    def __rmul__(self, other: object) -> Any:
        return self._binary("*", other, swapped=True)

    def __floordiv__(self, other: object) -> Any:
        return self._binary("//", other)

    def __rfloordiv__(self, other: object) -> Any:
        return self._binary("//", other, swapped=True)

    def __mod__(self, other: object) -> Any:
        return self._binary("%", other)

    def __rmod__(self, other: object) -> Any:
        return self._binary("%", other, swapped=True)

    def __neg__(self) -> Any:
        return self._binary("*", -1)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Dim) and other.expr == self.expr:
            return True
        if not isinstance(other, int):
            return False
        self._needed("compared", _ASSERT)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: object) -> bool:
        self._needed("compared", _ASSERT)

    __le__ = __gt__ = __ge__ = __lt__

    def __bool__(self) -> bool:
        self._needed("used as a condition")

    def _no_number(self, *_: object) -> NoReturn:
        self._needed("used as a number")

    __float__ = __int__ = __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __divmod__ = __rdivmod__ = _no_number
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __abs__ = __round__ = __trunc__ = _no_number


def join(op: str, a: int, b: int) -> int:
    """``min`` or ``max`` of two numbers, of which at least one is a ``Dim``."""
    first, second = (a, b) if isinstance(a, Dim) else (b, a)
    result = first._binary(op, second) if isinstance(first, Dim) else NotImplemented
    if result is NotImplemented:
        raise TypeError(f"{op}() of a block size and a {type(second).__name__}")
    return result


def make_dim(expr: Expr, hints: Hints, refuse: Callable[[str, str | None], NoReturn]) -> int:
    """``expr`` as kernel code sees it: a plain int if it is one, else a ``Dim``."""
    if isinstance(expr, int):
        return expr
    value = hints.encode(expr)
    return Dim(hints.decode(value), hints, refuse) if blocks_in(expr) else value
