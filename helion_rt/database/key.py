"""The key of a record: what a tuning result may depend on, and nothing else."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import msgpack

Plain: TypeAlias = "bool | int | float | str | bytes | tuple[Plain, ...] | None"

_DOMAIN = b"helion_rt.database.key.v1\0"
_HEX = re.compile(r"[0-9a-f]{8,128}")
_MAX_DEPTH = 32
_LEAVES = frozenset({type(None), bool, int, float, str, bytes})
_INT_RANGE = range(-(2**63), 2**64)  # what msgpack can hold


def pack(plain: Any) -> bytes:
    """Plain data (lists, maps, text, bytes, numbers) as msgpack; maps keep their order."""
    data = msgpack.packb(plain, use_bin_type=True)
    assert isinstance(data, bytes)  # None only for a packer that is told to keep its buffer
    return data


def freeze(value: Any, depth: int = 0) -> Plain:
    """``value`` as plain immutable data: lists become tuples, subclasses their base type. Raises TypeError for anything
    that is not plain data, ValueError where it is nested more than 32 deep."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"plain data may be nested {_MAX_DEPTH} deep at most")
    if type(value) in _LEAVES:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, (tuple, list)):
        return tuple(freeze(item, depth + 1) for item in value)
    raise TypeError(f"a key is made of None, bool, int, float, str, bytes and tuples of them, not of {type(value).__name__}: {value!r}")


def _to_wire(value: Plain) -> Any:
    """Plain data as msgpack holds it. Maps occur nowhere else in a key, so they mark what msgpack has no canonical form for."""
    if type(value) is str:
        return value
    if isinstance(value, tuple):
        return [_to_wire(item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INT_RANGE:
        return {"int": str(value)}
    if isinstance(value, float) and math.isnan(value):
        return {"float": "nan"}  # one NaN, whatever its payload bits
    return value


def _from_wire(value: Any, depth: int = 0) -> Plain:
    if depth > _MAX_DEPTH:
        raise ValueError(f"a key is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, list):
        return tuple(_from_wire(item, depth + 1) for item in value)
    if isinstance(value, dict):
        if value == {"float": "nan"}:
            return math.nan
        if value.keys() == {"int"} and isinstance(value["int"], str):
            return int(value["int"])
        raise ValueError("a key holds a map that means nothing")
    return freeze(value)


@dataclass(frozen=True, eq=False)
class Key:
    """``fingerprint`` of the program (hex), ``signature`` (plain data: shapes, dtypes, specialised values), ``numerics``
    class, and ``target`` (``Target.key()``). Equal if and only if the digests are: ``1``, ``1.0`` and ``True`` differ.

    Raises TypeError where ``signature`` is not plain data, ValueError for a malformed fingerprint or text that is not Unicode.
    """

    fingerprint: str
    signature: Plain
    numerics: str
    target: str

    def __post_init__(self) -> None:
        for name in ("fingerprint", "numerics", "target"):
            if not isinstance(getattr(self, name), str):
                raise TypeError(f"Key.{name} is text, not {type(getattr(self, name)).__name__}")
        if not _HEX.fullmatch(self.fingerprint):
            raise ValueError(f"Key.fingerprint is 8 to 128 lower-case hex digits, not {self.fingerprint!r}")
        object.__setattr__(self, "signature", freeze(self.signature))
        self.digest  # noqa: B018  what cannot be encoded is refused here, not at the first use

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) of the canonical encoding: the name of the record in every tier."""
        return hashlib.sha256(_DOMAIN + pack(self.to_plain())).hexdigest()

    def to_plain(self) -> list[Any]:
        """What msgpack holds: ``[fingerprint, signature, numerics, target]``."""
        return [self.fingerprint, _to_wire(self.signature), self.numerics, self.target]

    @classmethod
    def from_plain(cls, plain: Any) -> Key:
        """The inverse of ``to_plain``. Raises ValueError or TypeError for anything else."""
        if not isinstance(plain, list) or len(plain) != 4:
            raise ValueError("a key is a list of four")
        fingerprint, signature, numerics, target = plain
        return cls(fingerprint, _from_wire(signature), numerics, target)

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)
