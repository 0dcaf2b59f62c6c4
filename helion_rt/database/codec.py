"""Records and programs as bytes. What is read is checked in this order: size, magic, kind, checksum, version, syntax, schema.

Layout: ``HLRT``, a byte for the kind, a byte for the major version, SHA-256 of all that and the payload (32 bytes), payload
(msgpack). Nothing that is read is ever executed: no pickle, no extension types, no hooks.

Versions. The layout above, and the largest sizes, are those of every major version to come, so that each can tell an entry of a newer
one (``NewerRecord``: a miss, never set aside, never overwritten) from a damaged one. A new major is for what older versions would
misread. A new field is a new minor: ``minor`` in the payload, absent while it is 0, is the lowest that knows every field in
it. Of a newer minor, fields that are not known are kept in ``Record.extra`` and written back.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Set
from typing import Any, TypeVar

import msgpack

from .key import Key, pack
from .record import EVIDENCE_FIELDS, LATER_FIELDS, MINOR, RECORD_FIELDS, RETUNE, Evidence, EvidenceKind, Origin, Record, Status, to_plain

__all__ = [
    "MAX_BYTES", "MAX_FINDING_BYTES", "MAX_RECORD_BYTES", "BadRecord", "Kind", "NewerRecord", "decode_program", "decode_record",
    "encode_program", "encode_record", "from_plain", "to_plain",
]  # fmt: skip

MAX_RECORD_BYTES = 128 * 1024
MAX_FINDING_BYTES = 64 * 1024
"""Of a record without what is in quarantine. That has a bound of its own (``record.MAX_QUARANTINED``), so whatever two records that
are small enough know to be bad, joining them gives one that is small enough."""
MAX_PROGRAM_BYTES = 4 * 1024 * 1024

_MAGIC = b"HLRT"
_VERSION = 1
_HEADER = len(_MAGIC) + 2
_DIGEST = 32


class BadRecord(ValueError):
    """Bytes that are not a whole, well-formed entry of the kind asked for. A miss, never a failure of a call."""


class NewerRecord(BadRecord):
    """An entry of a later version of this library. A miss as well, but not ours to set aside or to overwrite."""


class Kind(enum.Enum):
    """What an entry holds."""

    RECORD = b"r"
    PROGRAM = b"p"


MAX_BYTES = {Kind.RECORD: MAX_RECORD_BYTES, Kind.PROGRAM: MAX_PROGRAM_BYTES}
"""Largest entry of a kind, in bytes, header included."""


def _seal(kind: Kind, payload: bytes) -> bytes:
    head = _MAGIC + kind.value + bytes([_VERSION])
    data = head + hashlib.sha256(head + payload).digest() + payload
    if len(data) > MAX_BYTES[kind]:
        raise ValueError(f"a {kind.name.lower()} is at most {MAX_BYTES[kind]} bytes, this one is {len(data)}")
    return data


def _open(kind: Kind, data: bytes) -> Any:
    """The plain data of a sealed entry, checked up to msgpack's syntax."""
    if not isinstance(data, bytes) or not _HEADER + _DIGEST < len(data) <= MAX_BYTES[kind]:
        raise BadRecord("too short, too long or not bytes")
    head, digest, payload = data[:_HEADER], data[_HEADER : _HEADER + _DIGEST], data[_HEADER + _DIGEST :]
    if head[:-1] != _MAGIC + kind.value:
        raise BadRecord("another format or kind")
    if hashlib.sha256(head + payload).digest() != digest:
        raise BadRecord("the checksum does not fit")
    if head[-1] > _VERSION:
        raise NewerRecord(f"version {head[-1]}; this library knows {_VERSION}")
    if head[-1] != _VERSION:
        raise BadRecord("another version")
    size = len(payload)
    try:
        return msgpack.unpackb(
            payload,
            raw=False,
            use_list=True,
            strict_map_key=True,
            max_str_len=size,
            max_bin_len=size,
            max_array_len=size,
            max_map_len=size,
            max_ext_len=0,  # with the limit at 0, an extension type is a syntax error
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise BadRecord(f"not msgpack: {error}") from error


def encode_record(record: Record) -> bytes:
    """``record`` as bytes; equal records give equal bytes. Raises ValueError if they are more than MAX_RECORD_BYTES, or more than
    MAX_FINDING_BYTES without what is in quarantine."""
    plain = to_plain(record)
    payload = pack(plain)
    if len(payload) > MAX_FINDING_BYTES:
        finding = len(pack({**plain, "quarantined": []}))
        if finding > MAX_FINDING_BYTES:
            raise ValueError(f"a record is at most {MAX_FINDING_BYTES} bytes without what is in quarantine, this one is {finding}")
    return _seal(Kind.RECORD, payload)


def _fields(plain: Any, names: Set[str], later: Set[str] = frozenset()) -> dict[str, Any]:
    if not isinstance(plain, dict) or plain.keys() not in (names, names | later):
        raise ValueError(f"expected a map with the fields {', '.join(sorted(names))}")
    return plain


def decode_record(data: bytes) -> Record:
    """The inverse of ``encode_record``. Raises BadRecord for anything else, whatever it is."""
    record = from_plain(_open(Kind.RECORD, data))
    if len(data) > MAX_FINDING_BYTES // 2:  # numbers may take twice as much when they are written anew
        try:
            encode_record(record)
        except ValueError as error:
            raise BadRecord(str(error)) from error
    return record


def from_plain(plain: Any) -> Record:
    """The inverse of ``to_plain``. Raises BadRecord for anything else; NewerRecord for what a later minor version means by it."""
    minor = plain.get("minor", 0) if isinstance(plain, dict) else 0
    newer = isinstance(minor, int) and not isinstance(minor, bool) and minor > MINOR
    try:
        return _newer_from_plain(plain) if newer else _from_plain(plain)
    except (ValueError, TypeError, OverflowError) as error:
        raise (NewerRecord if newer else BadRecord)(str(error)) from error


def _from_plain(plain: Any, extra: dict[str, Any] | None = None) -> Record:
    """Raises ValueError, TypeError or OverflowError."""
    asked = {RETUNE} if isinstance(plain, dict) and plain.get(RETUNE) is True else set()
    fields = dict(_fields(plain, RECORD_FIELDS | asked, LATER_FIELDS))
    evidence = dict(_fields(fields.pop("evidence"), EVIDENCE_FIELDS))
    return Record(
        key=Key.from_plain(fields.pop("key")),
        status=_member(Status, fields.pop("status")),
        origin=_member(Origin, fields.pop("origin")),
        evidence=Evidence(kind=_member(EvidenceKind, evidence.pop("kind")), **evidence),
        extra=extra or {},
        **fields,
    )


def _newer_from_plain(plain: dict[str, Any]) -> Record:
    """As ``_from_plain``, for a record of a newer minor version."""
    known = RECORD_FIELDS | LATER_FIELDS | {RETUNE}
    extra = {name: value for name, value in plain.items() if name not in known}
    ours = {name: value for name, value in plain.items() if name in known}
    evidence = ours.get("evidence")
    if isinstance(evidence, dict) and (more := {name: value for name, value in evidence.items() if name not in EVIDENCE_FIELDS}):
        extra["evidence"] = more
        ours["evidence"] = {name: value for name, value in evidence.items() if name in EVIDENCE_FIELDS}
    return _from_plain(ours, extra)


_E = TypeVar("_E", bound=enum.Enum)


def _member(kind: type[_E], value: Any) -> _E:
    if not isinstance(value, str):
        raise TypeError(f"{kind.__name__} is text, not {type(value).__name__}")
    return kind(value)


def encode_program(alias: str, program: bytes) -> bytes:
    """A captured program (already bytes) with the alias that finds it. Raises ValueError above MAX_PROGRAM_BYTES."""
    return _seal(Kind.PROGRAM, pack([alias, program]))


def decode_program(data: bytes) -> tuple[str, bytes]:
    """``(alias, program)``, the inverse of ``encode_program``. Raises BadRecord. The program's own codec checks the rest."""
    plain = _open(Kind.PROGRAM, data)
    if not isinstance(plain, list) or len(plain) != 2 or not isinstance(plain[0], str) or not isinstance(plain[1], bytes):
        raise BadRecord("expected an alias and a program")
    return plain[0], plain[1]
