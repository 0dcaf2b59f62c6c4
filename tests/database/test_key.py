"""Keys: equal if and only if everything they hold is, type included."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any

import pytest
from database_strategies import keys, plain
from hypothesis import given

from helion_rt.database import Key


def typed(value: object) -> object:
    """Data in a form that ``==`` compares as keys should: by type, NaN equal to itself, -0.0 unlike 0.0."""
    if isinstance(value, tuple):
        return tuple(typed(item) for item in value)
    return type(value).__name__, "nan" if isinstance(value, float) and math.isnan(value) else repr(value)


@given(keys)
def test_plain_round_trip(key: Key) -> None:
    again = Key.from_plain(key.to_plain())
    assert again == key and hash(again) == hash(key)
    assert typed(again.signature) == typed(key.signature)


@given(keys, plain)
def test_digest_says_whether_signatures_differ(key: Key, signature: object) -> None:
    other = dataclasses.replace(key, signature=signature)
    assert (other == key) == (typed(other.signature) == typed(key.signature))


def test_types_that_python_holds_equal_differ() -> None:
    signatures = [(1,), (1.0,), (True,), ("1",), (b"1",), ((1,),), (), 1, (0.0,), (-0.0,), (None,), (2**70,), (str(2**70),)]
    assert len({Key("ab" * 32, signature, "default", "cpu") for signature in signatures}) == len(signatures)


def test_every_field_counts() -> None:
    key = Key("ab" * 32, (1,), "default", "v5e")
    changed = [("fingerprint", "cd" * 32), ("signature", (2,)), ("numerics", "x64"), ("target", "v6e")]
    assert len({key, *(dataclasses.replace(key, **{name: value}) for name, value in changed)}) == 5


def test_digest_is_stable() -> None:
    # Changing this orphans every record in the field.
    digest = "adc936c92bcb9236ac2cc28f6cc03fd3cd52798db8659058ede9242644499ee9"
    assert Key("ab" * 32, (("tensor", (4, 8), "float32"), None, 2**70), "default", "v5e").digest == digest


def test_lists_and_subclasses_are_plain_data() -> None:
    class Level(enum.IntEnum):
        ONE = 1

    lists: Any = [1, [2]]
    assert Key("ab" * 32, lists, "default", "cpu") == Key("ab" * 32, (Level.ONE, (2,)), "default", "cpu")


@pytest.mark.parametrize("signature", [object(), {"a": 1}, (1, {2}), (print,)])
def test_what_is_not_plain_data_is_refused(signature: object) -> None:
    with pytest.raises(TypeError, match="a key is made of"):
        Key("ab" * 32, signature, "default", "cpu")  # type: ignore[arg-type]


def test_malformed_keys_are_refused() -> None:
    nested: tuple = ()
    for _ in range(40):
        nested = (nested,)
    for fingerprint, signature in [("nothex", ()), ("../../etc/passwd", ()), ("ab" * 32, nested), ("ab" * 32, ("\ud800",))]:
        with pytest.raises(ValueError):
            Key(fingerprint, signature, "default", "cpu")
