"""Frames between the tuner and its worker: a 4-byte length, then msgpack of plain data. Nothing else crosses."""

from __future__ import annotations

import struct
from typing import Any, BinaryIO

import msgpack

FRAME_LIMIT_BYTES = 64 * 1024 * 1024


class BadFrame(ValueError):
    """A frame that is too long, cut short or not msgpack of plain data."""


def write_frame(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Send one message. Raises ``BadFrame`` if it is over the limit, ``OSError`` if the other side is gone."""
    payload = bytes(msgpack.packb(message, use_bin_type=True) or b"")
    if len(payload) > FRAME_LIMIT_BYTES:
        raise BadFrame(f"a frame of {len(payload)} bytes is over the limit of {FRAME_LIMIT_BYTES}")
    stream.write(struct.pack(">I", len(payload)) + payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message, or None at the end of the stream. Raises ``BadFrame``."""
    head = _exactly(stream, 4)
    if head is None:
        return None
    (size,) = struct.unpack(">I", head)
    if size > FRAME_LIMIT_BYTES:
        raise BadFrame(f"a frame of {size} bytes is over the limit of {FRAME_LIMIT_BYTES}")
    payload = _exactly(stream, size)
    if payload is None:
        raise BadFrame("the stream ended inside a frame")
    try:
        message = msgpack.unpackb(payload, raw=False, strict_map_key=True)
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise BadFrame(f"not msgpack: {error}") from error
    if not isinstance(message, dict):
        raise BadFrame(f"a message must be a map, got {type(message).__name__}")
    return message


def _exactly(stream: BinaryIO, size: int) -> bytes | None:
    parts = []
    left = size
    while left:
        part = stream.read(left)
        if not part:
            if parts:
                raise BadFrame("the stream ended inside a frame")
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)
