"""Facts of a call: what a program may depend on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union


@dataclass(frozen=True, slots=True)
class TensorFact:
    """An array argument: its shape and dtype (NumPy/ml_dtypes name). Strides never matter: the door makes it dense."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class ScalarFact:
    """A Python number whose value is known only at run time; ``kind`` is ``"int"`` or ``"float"``."""

    kind: str


@dataclass(frozen=True, slots=True)
class StaticFact:
    """An argument whose value is part of the signature: bool, str, None, dtype name, a callable's alias, or an
    int or float that was specialised."""

    value: object


Fact = Union[TensorFact, ScalarFact, StaticFact, tuple["Fact", ...]]
