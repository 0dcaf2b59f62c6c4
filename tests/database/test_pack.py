"""Packs: the same records give the same bytes, and whatever is in a file, reading it says so and nothing else happens."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from database_strategies import keys, plain, words
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helion_rt.database import Evidence, EvidenceKind, Key, Origin, Record, Status, better, encode_record, pack
from helion_rt.database.signing import Trust

OPEN = Trust()
OURS, THEIRS = Trust(b"our secret, kept well"), Trust(b"the secret of others")
ONLY_OURS = Trust(b"our secret, kept well", required=True)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=3,
)
configs = st.dictionaries(texts, values, max_size=2)
times = st.none() | st.floats(1e-6, 1e6)
counts = st.integers(0, 2**63 - 1)
records = st.builds(
    Record, keys, words, st.sampled_from(Status), configs, counts,
    st.builds(Evidence, st.sampled_from(EvidenceKind), times, times, st.floats(0, 10), counts, counts, st.floats(0, 1e9)),
    st.dictionaries(texts, texts, max_size=2), st.sampled_from(Origin), words, st.just("2026-11-29T12:00:00Z"),
    st.lists(configs, max_size=2).map(tuple), st.integers(0, 5), st.booleans(),
)  # fmt: skip


def text_of(found: list[Record], trust: Trust = OPEN) -> str:
    return "".join(pack.lines(found, trust))


def read_text(text: str | bytes, trust: Trust = OPEN, **more: Any) -> tuple[list[Record], list[pack.Problem]]:
    return pack.read_stream(io.BytesIO(text.encode() if isinstance(text, str) else text), trust, **more)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(records, max_size=2), st.sampled_from([OPEN, OURS, ONLY_OURS]))
def test_what_is_written_is_read(found: list[Record], trust: Trust) -> None:
    back, problems = read_text(text_of(found, trust), trust)
    assert problems == []
    assert {r.key.digest: encode_record(r) for r in back} == {
        digest: encode_record(pack.with_origin(record)) for digest, record in _best(found).items()
    }
    assert text_of(back, trust) == text_of(found, trust)


def _best(found: list[Record]) -> dict[str, Record]:
    best: dict[str, Record] = {}
    for record in found:
        digest = record.key.digest
        best[digest] = better(best[digest], record) if digest in best else record
    return best


@given(st.permutations([0, 1, 2, 3]), plain)
def test_the_order_in_which_records_come_is_not_seen(order: list[int], signature: Any) -> None:
    made = [
        Record(Key(f"{n:08x}", signature, "", "v5e"), f"k{n % 2}", Status.NO_CANDIDATE, {}, 1, Evidence(EvidenceKind.MODELLED), {},
               date="2026-11-29T12:00:00Z")
        for n in range(4)
    ]  # fmt: skip
    assert text_of([made[n] for n in order]) == text_of(made)


def test_a_pack_is_text_in_the_order_of_people(make_record: Callable[..., Record]) -> None:
    made = [make_record(n, key=n, kernel=f"k{9 - n}\x7f\x1b\u202e") for n in range(3)]
    lines = text_of(made, OURS).splitlines()
    assert json.loads(lines[0]) == {"helion_rt_pack": 1, "records": 3}
    assert [json.loads(line)["kernel"] for line in lines[1:]] == [f"k{n}\x7f\x1b\u202e" for n in (7, 8, 9)]
    assert all(line.isascii() and line.isprintable() for line in lines)
    first = list(json.loads(lines[1]))
    assert first[:6] == ["kernel", "target", "signature", "status", "config", "evidence"] and first[-3:] == ["digest", "check", "hmac"]


def test_a_better_winner_changes_one_line(make_record: Callable[..., Record]) -> None:
    before = [make_record(1, key=n) for n in range(5)]
    old, new = text_of(before).splitlines(), text_of([*before, make_record(2, key=3)]).splitlines()
    assert len(old) == len(new) and sum(a != b for a, b in zip(old, new, strict=True)) == 1


def test_write_and_read_a_file(make_record: Callable[..., Record], tmp_path: Path) -> None:
    made = [make_record(n, key=n) for n in range(4)]
    file = tmp_path / "some.pack"
    assert pack.write(made, file, OPEN) == 4 and file.read_text() == text_of(made)
    assert pack.write(made[:2], str(file), OPEN) == 2
    assert os.listdir(tmp_path) == ["some.pack"]
    back, problems = pack.read(file, OPEN, origin=Origin.SHIPPED)
    assert not problems and [record.origin for record in back] == [Origin.SHIPPED] * 2


def test_a_pack_that_cannot_be_written_leaves_the_old_one(make_record: Callable[..., Record], tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "some.pack"
    pack.write([make_record(1)], file, OPEN)
    before = file.read_bytes()
    monkeypatch.setattr(pack, "MAX_PACK_BYTES", 1000)
    with pytest.raises(ValueError, match="a pack is at most"):
        pack.write([make_record(1, key=n) for n in range(5)], file, OPEN)
    with pytest.raises(OSError):
        pack.write([make_record(1)], tmp_path / "none" / "some.pack", OPEN)
    assert file.read_bytes() == before and os.listdir(tmp_path) == ["some.pack"]


@pytest.mark.parametrize(
    "content, reason",
    [
        (b"", "empty"),
        (b"\n\n", "empty"),
        (b"\0\1\2", "not JSON"),
        (b"[1]\n", "not a JSON object"),
        (b"{}\n", "not a pack"),
        (b'{"helion_rt_pack": true, "records": 1}\n', "not a pack"),
        (b'{"helion_rt_pack": 2, "records": 1}\n{}\n', "version 2"),
        (b"[" * 100_000 + b"\n", "not JSON"),
        (b"x" * (pack.MAX_LINE_BYTES + 1), "at most"),
    ],
)
def test_what_is_no_pack(content: bytes, reason: str) -> None:
    found, (problem,) = read_text(content)
    assert found == [] and reason in str(problem)


@pytest.mark.parametrize("path", ["missing.pack", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_a_problem(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, (problem,) = pack.read(path, OPEN)
    assert found == [] and problem.line == 0 and problem.reason


def test_a_huge_file_is_refused_with_its_size_and_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "huge.pack", "wb") as file:
        file.truncate(3 << 30)
    found, (problem,) = pack.read(tmp_path / "huge.pack", OPEN)
    assert found == [] and "3072 MiB" in problem.reason and "256 MiB" in problem.reason


def test_a_stream_without_end_is_not_read_without_end() -> None:
    class Endless(io.RawIOBase):
        read_so_far = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self.read_so_far += len(buffer)
            buffer[:] = b" " * len(buffer)
            return len(buffer)

    raw = Endless()
    found, (problem,) = pack.read_stream(io.BufferedReader(raw), OPEN)
    assert found == [] and problem.line == 1 and raw.read_so_far < 2 * pack.MAX_LINE_BYTES


def changed(line: str, check: bool = True, **fields: Any) -> str:
    """A line with other fields (None: without), and a check that fits again."""
    found = {name: value for name, value in {**json.loads(line), **fields}.items() if value is not ...}
    if check:
        signed = {name: value for name, value in found.items() if name not in ("check", "hmac")}
        found["check"] = pack._check(pack._canonical(signed))
    return json.dumps(found)


BAD = {
    "digest": ("0" * 64, "the digest is not that of its key"),
    "kernel": (7, "Record.kernel is text"),
    "status": ("best", "'best' is not a valid Status"),
    "config": ([1], "Record.config is a mapping"),
    "evidence": ({"kind": "measured"}, "expected a map with the fields"),
    "date": ("yesterday", "Record.date is UTC"),
    "numerics": (..., "the field 'numerics' is missing"),
    "space_version": (-1, "at least 0"),
    "toolchain": ({"jax": 1}, "is text"),
    "origin": ("shipped", "no field 'origin'"),
    "key": ([], "no field 'key'"),
    "signature": ({"what": 1}, "a map that means nothing"),
    "fingerprint": ("x", ""),
    "nonsense": (1, "expected a map"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_told_by_its_number_and_the_others_are_read(name: str, make_record: Callable[..., Record]) -> None:
    value, reason = BAD[name]
    lines = text_of([make_record(1, key=n) for n in range(3)]).splitlines()
    lines[2] = changed(lines[2], **{name: value})
    found, (problem,) = read_text("\n".join(lines))
    assert len(found) == 2 and problem.line == 3 and reason in problem.reason


def test_a_change_by_hand_is_seen(make_record: Callable[..., Record]) -> None:
    lines = text_of([make_record(1)]).splitlines()
    lines[1] = changed(lines[1], check=False, config={"block_sizes": [64]})
    found, (problem,) = read_text("\n".join(lines))
    assert found == [] and "changed by hand" in problem.reason


NOT_JSON = ['{"a": 1, "a": 2}', '{"a": NaN}', '{"a": Infinity}', "{" * 5000, '{"a": ' + "[" * 5000 + "]" * 5000 + "}"]


@pytest.mark.parametrize("text", NOT_JSON)
def test_json_that_others_might_take(text: str, make_record: Callable[..., Record]) -> None:
    lines = [*text_of([make_record(1)]).splitlines(), text]
    found, (problem,) = read_text("\n".join(lines))
    assert len(found) == 1 and problem.line == 3


@given(st.binary(max_size=80), st.integers(0, 700), st.integers(0, 60))
def test_bytes_that_are_overwritten_lose_lines_and_nothing_else(junk: bytes, at: int, gone: int) -> None:
    made = [Record(Key("ab" * 8, (n,), "", "cpu"), "k", Status.WINNER, {"n": n}, 1, Evidence(EvidenceKind.MODELLED), {}) for n in range(3)]
    whole = text_of(made, OURS).encode()
    found, problems = read_text(whole[:at] + junk + whole[at + gone :], ONLY_OURS)
    good = {encode_record(pack.with_origin(record)) for record in made}
    assert {encode_record(record) for record in found} <= good
    assert len(found) == 3 or problems


def test_a_file_that_is_cut_off_is_told(make_record: Callable[..., Record]) -> None:
    whole = text_of([make_record(1, key=n) for n in range(3)]).encode()
    for length in range(len(whole)):
        found, problems = read_text(whole[:length])
        assert problems or (len(found) == 3 and length == len(whole) - 1), length


def test_signatures(make_record: Callable[..., Record]) -> None:
    def taken(text: str, trust: Trust) -> int | str:
        found, problems = read_text(text, trust)
        return len(found) or problems[0].reason

    plain, ours = text_of([make_record(1)]), text_of([make_record(1)], OURS)
    assert taken(plain, OPEN) == taken(plain, OURS) == taken(ours, OPEN) == taken(ours, OURS) == taken(ours, ONLY_OURS) == 1
    assert taken(plain, ONLY_OURS) == "it is not signed"
    assert taken(ours, THEIRS) == "the signature is not one of our key"
    header, line = ours.splitlines()
    moved = changed(line, config={"block_sizes": [512]})
    assert taken(f"{header}\n{moved}", OURS) == "the signature is not one of our key"
    assert taken(f"{header}\n{changed(line, hmac=7)}", OURS) == "the signature is not one of our key"
    assert taken(f"{header}\n{changed(line, hmac='é')}", OURS) == "the signature is not one of our key"


def test_fields_of_a_later_version_are_kept(make_record: Callable[..., Record]) -> None:
    record = make_record(1)
    later = {"minor": 99, "shape_of_chip": {"x": [1, 2.5, None, True]}, "evidence": {"watts": 3.0}}
    record = Record(**{**{name: getattr(record, name) for name in record.__dataclass_fields__}, "extra": later})
    found, problems = read_text(text_of([record]))
    assert not problems and found[0].extra == later and text_of(found) == text_of([record])


def test_many_problems_are_told_only_so_long() -> None:
    found, problems = read_text('{"helion_rt_pack": 1, "records": 9}\n' + "x\n" * 5000)
    assert found == [] and len(problems) == pack.MAX_PROBLEMS + 1 and "too many" in problems[-1].reason
