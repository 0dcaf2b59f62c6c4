"""Packs: records as a text file that a reviewer reads in a diff and a machine checks line by line.

JSON Lines, plain ASCII. The first line is ``{"helion_rt_pack": 1, "records": N}``; then one record a line, sorted by kernel, target and
digest of the key, so that equal records give equal bytes and a changed winner is one changed line. A line says, in this order, what a
reader looks for: kernel, target, shapes, verdict, config, evidence, date, toolchain; and last what a machine needs: the rest of the key,
its digest, ``check`` (the first 16 hex digits of the SHA-256 of the line without ``check`` and ``hmac``), and ``hmac`` (HMAC-SHA256 over
the same, where there is a secret). Whoever edits a line by hand breaks its check: winners come from tuning.

``origin`` (how a record came to a tier) is not in a pack: the reader says it. Nothing that is read is ever executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgpack

from . import codec
from .key import pack as to_msgpack
from .record import Origin, Record, better

if TYPE_CHECKING:
    from .signing import Trust

VERSION = 1
MAX_PACK_BYTES = 256 * 1024 * 1024
# JSON needs at most eight characters for a byte of msgpack (empty bytes are the worst).
MAX_LINE_BYTES = 8 * codec.MAX_RECORD_BYTES + 4096
MAX_PROBLEMS = 1000

_HEADER = "helion_rt_pack"
_DOMAIN = b"helion_rt.pack.v1\0"
_CHECK_DIGITS = 16
# What is on a line, as it is read; fields this version does not know follow "retune".
_FIRST = ("kernel", "target", "signature", "status", "config", "evidence", "date", "toolchain", "space_version", "machine", "revision",
          "quarantined", "retune")  # fmt: skip
_LAST = ("numerics", "fingerprint", "digest")
_KEY = ("fingerprint", "signature", "numerics", "target")
_KNOWN = {*_FIRST, *_LAST, "origin", "key"}


@dataclass(frozen=True)
class Problem:
    """Something of a pack that was not read. ``line`` counts from 1; 0 is the file as a whole."""

    line: int
    reason: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}" if self.line else self.reason


class _Refused(ValueError):
    """A line, or a file, that is not read; says why."""


def sort_key(record: Record) -> tuple[str, str, str]:
    """The order of records in a pack."""
    return record.kernel, record.key.target, record.key.digest


def lines(records: Iterable[Record], trust: Trust) -> Iterator[str]:
    """The lines of a pack of ``records``, header first, each with its line feed. Of several records of a key the best is kept."""
    best: dict[str, Record] = {}
    for record in records:
        digest = record.key.digest
        best[digest] = better(best[digest], record) if digest in best else record
    yield json.dumps({_HEADER: VERSION, "records": len(best)}) + "\n"
    for record in sorted(best.values(), key=sort_key):
        yield to_line(record, trust) + "\n"


def write(records: Iterable[Record], file: str | os.PathLike[str], trust: Trust) -> int:
    """Write a pack of ``records``, in one piece or not at all; the number of records in it. Raises OSError where the file cannot be
    written, ValueError above MAX_PACK_BYTES."""
    path = Path(file)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    count, size = -1, 0  # the header is no record
    try:
        with open(draft, "xb") as out:
            for line in lines(records, trust):
                data = line.encode("ascii")
                size += len(data)
                if size > MAX_PACK_BYTES:
                    raise ValueError(f"a pack is at most {MAX_PACK_BYTES >> 20} MiB; give fewer records (by kernel or by target)")
                out.write(data)
                count += 1
            out.flush()
            os.fsync(out.fileno())
        os.replace(draft, path)
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return count


def read(file: str | os.PathLike[str], trust: Trust, *, origin: Origin = Origin.IMPORTED) -> tuple[list[Record], list[Problem]]:
    """The records of a pack, best of each key, sorted, all with ``origin``; and what was wrong. Never raises: a file that is no pack,
    too large or not there is a problem of its own, a bad line is one and the others are read."""
    try:
        with open(file, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            if size > MAX_PACK_BYTES:
                raise _Refused(f"a pack is at most {MAX_PACK_BYTES >> 20} MiB, this file is {size / (1 << 20):.0f} MiB")
            return read_stream(stream, trust, origin=origin)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte in it
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return [], [Problem(0, reason)]


def read_stream(stream: BinaryIO, trust: Trust, *, origin: Origin = Origin.IMPORTED) -> tuple[list[Record], list[Problem]]:
    """``read`` from an open binary stream. Raises OSError."""
    best: dict[str, Record] = {}
    problems: list[Problem] = []
    expected: int | None = None
    good = 0
    for number, line in _numbered(stream):
        try:
            if line is None:
                raise _Refused(f"a line is at most {MAX_LINE_BYTES} bytes, and a pack {MAX_PACK_BYTES >> 20} MiB: not read from here on")
            if number == 1:
                expected = _read_header(line)
                continue
            record = from_line(line, trust, origin=origin)
            good += 1
            digest = record.key.digest
            best[digest] = better(best[digest], record) if digest in best else record
        except _Refused as error:
            problems.append(Problem(number, str(error)))
            if number == 1:
                return [], problems
            if len(problems) >= MAX_PROBLEMS:
                problems.append(Problem(number, "too many problems: not read from here on"))
                break
    if expected is None:
        problems.append(Problem(0, "empty: not a pack"))
    elif good + len(problems) < expected:
        problems.append(Problem(0, f"{expected} records are announced, {good} are there: it is cut off"))
    return sorted(best.values(), key=sort_key), problems


def _numbered(stream: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """The lines that are not blank, with their numbers; None once for one that is too long, and then no more."""
    size = number = 0
    while line := stream.readline(MAX_LINE_BYTES + 1):
        number += 1
        size += len(line)
        if len(line) > MAX_LINE_BYTES or size > MAX_PACK_BYTES:
            yield number, None
            return
        if line.strip():
            yield number, line


def _read_header(line: bytes) -> int:
    """The number of records that the first line of a pack announces."""
    header = _json_map(line)
    version, count = header.get(_HEADER), header.get("records")
    if type(version) is not int or type(count) is not int:
        raise _Refused('not a pack: the first line is not {"helion_rt_pack": 1, "records": ...}')
    if version != VERSION:
        raise _Refused(f"a pack of version {version}; this helion_rt reads version {VERSION}")
    return count


def to_line(record: Record, trust: Trust) -> str:
    """``record`` as one line of a pack, without the line feed."""
    plain = codec.to_plain(record)
    plain.update(zip(_KEY, plain["key"], strict=True))
    plain["signature"] = signature_to_json(plain["signature"])
    plain["digest"] = record.key.digest
    unknown = {name: _unknown_to_json(plain[name]) for name in sorted(plain.keys() - _KNOWN)}
    line = {**{name: plain[name] for name in _FIRST if name in plain}, **unknown, **{name: plain[name] for name in _LAST}}
    signed = _canonical(line)
    line["check"] = _check(signed)
    if trust.secret is not None:
        line["hmac"] = _hmac(trust.secret, signed)
    return json.dumps(line, allow_nan=False)


def from_line(line: bytes, trust: Trust, *, origin: Origin = Origin.IMPORTED) -> Record:
    """The record of one line. Raises ValueError saying what is wrong with it."""
    try:
        plain = _checked(line, trust)
        if clash := plain.keys() & {"key", "origin"}:
            raise _Refused(f"a line has no field '{min(clash)}'")
        digest = plain.pop("digest")
        key = {name: plain.pop(name) for name in _KEY}
        key["signature"] = _signature_from_json(key["signature"])
        unknown = {name: _unknown_from_json(plain[name]) for name in plain.keys() - _KNOWN}
        record = codec.from_plain({**plain, **unknown, "key": [key[name] for name in _KEY], "origin": origin.value})
        codec.encode_record(record)  # one that no tier could hold is refused here
    except _Refused:
        raise
    except KeyError as error:
        raise _Refused(f"the field {error} is missing") from error
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise _Refused(str(error)) from error
    if record.key.digest != digest:
        raise _Refused("the digest is not that of its key")
    return record


def _checked(line: bytes, trust: Trust) -> dict[str, Any]:
    """The map of a line without its check and signature, which fit."""
    plain = _json_map(line)
    check, signature = plain.pop("check", None), plain.pop("hmac", None)
    signed = _canonical(plain)
    if check != _check(signed):
        raise _Refused("the check does not fit: it was changed by hand, or is damaged")
    if trust.secret is not None and signature is not None:
        if not isinstance(signature, str) or not hmac.compare_digest(signature.encode(), _hmac(trust.secret, signed).encode()):
            raise _Refused("the signature is not one of our key")
    elif trust.required:
        raise _Refused("it is not signed" if signature is None else "there is no key to check its signature with")
    return plain


def with_origin(record: Record, origin: Origin = Origin.IMPORTED) -> Record:
    """``record`` as a reader of a pack would have it: for comparing records that came by different ways."""
    return record if record.origin is origin else replace(record, origin=origin)


def _json_map(line: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a field is there twice")
        return found

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    try:
        found = json.loads(line, object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"not JSON: {error}") from error
    if not isinstance(found, dict):
        raise _Refused("not a JSON object")
    return found


def _canonical(line: dict[str, Any]) -> bytes:
    return json.dumps(line, sort_keys=True, separators=(",", ":")).encode("ascii")


def _check(signed: bytes) -> str:
    return hashlib.sha256(signed).hexdigest()[:_CHECK_DIGITS]


def _hmac(secret: bytes, signed: bytes) -> str:
    return hmac.new(secret, _DOMAIN + signed, hashlib.sha256).hexdigest()


def signature_to_json(value: Any) -> Any:
    """Key data (as ``Key.to_plain`` has it) as JSON can hold it: bytes as ``{"bytes": hex}``, infinities as ``{"float": "inf"}``."""
    if isinstance(value, list):
        return [signature_to_json(item) for item in value]
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"float": str(value)}
    return value


def _signature_from_json(value: Any) -> Any:
    """The inverse of ``signature_to_json``; what else is a map is left to ``Key.from_plain``."""
    if isinstance(value, list):
        return [_signature_from_json(item) for item in value]
    if isinstance(value, dict) and value.keys() == {"bytes"} and isinstance(value["bytes"], str):
        return bytes.fromhex(value["bytes"])
    if value in ({"float": "inf"}, {"float": "-inf"}):
        return float(value["float"])
    return value


def _unknown_to_json(value: Any) -> Any:
    """A field that this version does not know, as it is where JSON holds it faithfully, else as msgpack in hex."""
    with contextlib.suppress(ValueError, TypeError):
        text = json.dumps(value, allow_nan=False)
        if not _is_msgpack(value) and to_msgpack(json.loads(text)) == to_msgpack(value):
            return value
    return {"msgpack": to_msgpack(value).hex()}


def _unknown_from_json(value: Any) -> Any:
    if not _is_msgpack(value):
        return value
    return msgpack.unpackb(bytes.fromhex(value["msgpack"]), raw=False, strict_map_key=True, max_ext_len=0)


def _is_msgpack(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() == {"msgpack"} and isinstance(value["msgpack"], str)
