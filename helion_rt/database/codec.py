"""Records and programs as bytes. What is read is checked in this order: size, magic, version, checksum, syntax, schema.

Layout: ``HLRT``, a byte for the kind, a byte for the version, SHA-256 of all that and the payload (32 bytes), payload
(msgpack). Nothing that is read is ever executed: no pickle, no extension types, no hooks.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Set
from typing import Any, TypeVar

import msgpack

from .key import Key, pack
from .record import Evidence, EvidenceKind, Origin, Record, Status

MAX_RECORD_BYTES = 64 * 1024
MAX_PROGRAM_BYTES = 4 * 1024 * 1024

_MAGIC = b"HLRT"
_VERSION = 1
_HEADER = len(_MAGIC) + 2
_DIGEST = 32


class BadRecord(ValueError):
    """Bytes that are not a whole, well-formed entry of the kind asked for. A miss, never a failure of a call."""


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
    if head != _MAGIC + kind.value + bytes([_VERSION]):
        raise BadRecord("another format, kind or version")
    if hashlib.sha256(head + payload).digest() != digest:
        raise BadRecord("the checksum does not fit")
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


def to_plain(record: Record) -> dict[str, Any]:
    """``record`` as nested maps and lists of plain data."""
    evidence = record.evidence
    # Written only where there is something to say: older versions read what has never been rolled back.
    more = {"quarantined": list(record.quarantined), "revision": record.revision} if record.quarantined or record.revision else {}
    return {
        **more,
        "key": record.key.to_plain(),
        "kernel": record.kernel,
        "status": record.status.value,
        "config": record.config,
        "space_version": record.space_version,
        "evidence": {
            "kind": evidence.kind.value,
            "ms": evidence.ms,
            "default_ms": evidence.default_ms,
            "spread": evidence.spread,
            "pairs": evidence.pairs,
            "candidates_tried": evidence.candidates_tried,
            "seconds": evidence.seconds,
        },
        "toolchain": record.toolchain,
        "origin": record.origin.value,
        "machine": record.machine,
        "date": record.date,
    }


def encode_record(record: Record) -> bytes:
    """``record`` as bytes; equal records give equal bytes. Raises ValueError if they are more than MAX_RECORD_BYTES."""
    return _seal(Kind.RECORD, pack(to_plain(record)))


_RECORD_FIELDS = {"key", "kernel", "status", "config", "space_version", "evidence", "toolchain", "origin", "machine", "date"}
_LATER_FIELDS = {"quarantined", "revision"}
_EVIDENCE_FIELDS = {"kind", "ms", "default_ms", "spread", "pairs", "candidates_tried", "seconds"}


def _fields(plain: Any, names: set[str], later: Set[str] = frozenset()) -> dict[str, Any]:
    if not isinstance(plain, dict) or plain.keys() not in (names, names | later):
        raise ValueError(f"expected a map with the fields {', '.join(sorted(names))}")
    return plain


def decode_record(data: bytes) -> Record:
    """The inverse of ``encode_record``. Raises BadRecord for anything else, whatever it is."""
    plain = _open(Kind.RECORD, data)
    try:
        fields = dict(_fields(plain, _RECORD_FIELDS, _LATER_FIELDS))
        evidence = dict(_fields(fields.pop("evidence"), _EVIDENCE_FIELDS))
        return Record(
            key=Key.from_plain(fields.pop("key")),
            status=_member(Status, fields.pop("status")),
            origin=_member(Origin, fields.pop("origin")),
            evidence=Evidence(kind=_member(EvidenceKind, evidence.pop("kind")), **evidence),
            **fields,
        )
    except (ValueError, TypeError, OverflowError) as error:
        raise BadRecord(str(error)) from error


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
