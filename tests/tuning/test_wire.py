"""Frames: what goes in comes out; anything else is refused."""

import io
import struct

import pytest

from helion_rt.tuning import wire


def test_round_trip_and_end():
    stream = io.BytesIO()
    messages = [{"do": "trial", "config": {"block_sizes": [8, 16]}}, {"data": b"\0\xff", "x": 1.5, "none": None}]
    for message in messages:
        wire.write_frame(stream, message)
    stream.seek(0)
    assert [wire.read_frame(stream), wire.read_frame(stream), wire.read_frame(stream)] == [*messages, None]


@pytest.mark.parametrize(
    "data",
    [b"\0\0", struct.pack(">I", 10) + b"abc", struct.pack(">I", 2**31), struct.pack(">I", 1) + b"\xc1", struct.pack(">I", 1) + b"\x01"],
    ids=["short head", "short body", "too long", "not msgpack", "not a map"],
)
def test_bad_frames_are_refused(data):
    with pytest.raises(wire.BadFrame):
        wire.read_frame(io.BytesIO(data))


def test_too_large_to_send(monkeypatch):
    monkeypatch.setattr(wire, "FRAME_LIMIT_BYTES", 10)
    with pytest.raises(wire.BadFrame):
        wire.write_frame(io.BytesIO(), {"data": b"0" * 20})
