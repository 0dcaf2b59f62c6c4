"""``helion-rt cache verify``, ``gc`` and ``stats``."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helion_rt.cli.cache.gc import Entry, too_many
from helion_rt.cli.main import main
from helion_rt.database import LocalTier, Record, encode_record, pack
from helion_rt.database.codec import encode_program
from helion_rt.database.file_store import FileStore
from helion_rt.database.shared import open_shared
from helion_rt.database.signing import Trust
from helion_rt.database.upkeep import STALE_DRAFT_S, STALE_LOCK_S

ARMED = pickle.dumps(print)
JUNK = b"junk"


def plant(directory: Path, name: str, data: bytes) -> None:
    """``data`` in the database, whatever it is."""
    LocalTier(directory).store.merge(name, data, lambda old, new: new)


def raw(directory: Path) -> list[tuple[Any, ...]]:
    with sqlite3.connect(directory / "v1/local/cache.db") as connection:
        return connection.execute("SELECT key, value FROM Cache ORDER BY key").fetchall()


# verify


def test_a_good_database(run: Any, make: Any, fill: Any, home: Path) -> None:
    fill(home, *(make(key=n) for n in range(3)))
    assert run("verify").lines == [f"{home}: 3 good entries, 0 bad"]
    assert run("verify", "--dir", home).status == run("verify", home).status == 0
    assert json.loads(run("verify", "--json").out) == {"place": str(home), "good": 3, "newer": 0, "bad": []}


def test_what_is_wrong_is_listed_and_nothing_is_changed(run: Any, make: Any, fill: Any, home: Path) -> None:
    fill(home, make(key=0), make(key=9))
    digests = [make(key=n).key.digest for n in range(9)]
    good = encode_record(make(key=1))
    plant(home, f"r-{digests[1]}", JUNK)
    plant(home, f"r-{digests[2]}", good)
    plant(home, f"r-{digests[3]}", encode_record(make(key=3))[:-1])
    plant(home, f"r-{digests[4]}", encode_record(make(key=4, config={"block_sizes": "x\x1b[0m"})))
    plant(home, f"r-{digests[5]}", ARMED)
    plant(home, f"r-{digests[6]}", b"x" * 500_000)
    plant(home, "p-" + "0" * 64, encode_program("alias", b"program"))
    LocalTier(home).put_program("alias", b"no program")
    before = raw(home)
    result = run("verify")
    assert result.status == 1 and raw(home) == before and "\x1b" not in result.out
    assert result.lines[-1] == f"{home}: 2 good entries, 8 bad"
    told = {line.split(":")[0]: line.split(": ", 1)[1] for line in result.lines[:-1]}
    reasons = [told[f"record {digests[n]}"] for n in range(1, 7)]
    assert reasons[1] == "it belongs to another key" and reasons[2] == "the checksum does not fit" and "not a config" in reasons[3]
    assert "belongs to another alias" in told["program " + "0" * 64] and any("program" in reason for reason in told.values())
    found = json.loads(run("verify", "--json").out)
    assert found["good"] == 2 and len(found["bad"]) == 8


def test_a_shared_tier_and_a_pack(run: Any, make: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    tier = open_shared(f"file://{shared}", trust=Trust())
    tier.put(make(key=1))
    assert run("verify", f"file://{shared}").status == 0
    tier.engine.merge(make(key=2).key.digest, JUNK, lambda old, new: new)
    result = run("verify", "--dir", f"file://{shared}")
    assert result.status == 1 and result.lines[-1].endswith("1 good entries, 1 bad") and make(key=2).key.digest in result.lines[0]
    lines = list(pack.lines([make(key=1), make(key=2)], Trust()))
    (tmp_path / "a.pack").write_text("".join([*lines[:2], "junk\n"]))
    result = run("verify", tmp_path / "a.pack")
    assert result.status == 1 and "line 3: not JSON" in result.out and result.lines[-1].endswith("1 good entries, 1 bad")


def test_signatures(run: Any, make: Any, fill: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home, make(key=1))
    monkeypatch.setenv("HELION_RT_SIGNING_KEY", "a secret of at least sixteen bytes")
    run("import", _packed(home.parent / "a.pack", make(key=2)))
    assert run("verify").lines == [f"{home}: 2 good entries, 0 bad"]
    monkeypatch.setenv("HELION_RT_SIGNED_ONLY", "1")
    result = run("verify")
    assert result.status == 1 and result.lines[0] == f"record {make(key=1).key.digest}: it is not signed" and "1 bad" in result.lines[-1]
    assert "1 entries not signed" in run("ls").err


def _packed(file: Path, *records: Record) -> Path:
    pack.write(records, file, Trust())
    return file


def test_a_later_version_is_no_fault(run: Any, make: Any, fill: Any, home: Path, tmp_path: Path) -> None:
    fill(home, make(key=1))
    data = encode_record(make(key=2))
    head = data[:5] + b"\x63"
    plant(home, f"r-{make(key=2).key.digest}", head + hashlib.sha256(head + data[38:]).digest() + data[38:])
    result = run("verify")
    assert result.status == 0 and result.lines == [f"{home}: 1 good entries, 1 of a later version, 0 bad"]
    refused = run("import", _packed(tmp_path / "a.pack", make(key=2)))  # it is not overwritten
    assert refused.status == 1 and refused.lines[0].startswith("refused ") and run("verify").lines == result.lines


def test_nothing_to_verify(run: Any, home: Path) -> None:
    assert run("verify").lines == [f"{home}: 0 good entries, 0 bad"] and not home.exists()
    assert run("verify", home).status == 1


# gc


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def test_what_nobody_needs_goes(run: Any, make: Any, fill: Any, home: Path) -> None:
    fill(home, make(key=1))
    plant(home, f"r-{make(key=2).key.digest}", JUNK)
    LocalTier(home).get(make(key=2).key)  # sets it aside
    (home / "v1/local.broken-000-1").mkdir()
    (home / "v1/local.broken-000-1/cache.db").write_bytes(b"x" * 3000)
    (home / "v0/local").mkdir(parents=True)
    (home / "v0/local/old").write_bytes(b"x" * 2000)
    (home / "v2").mkdir()
    (home / "v1/files/tmp").mkdir(parents=True)
    (home / "v1/locks").mkdir(parents=True)
    for name, seconds in [("files/tmp/draft", STALE_DRAFT_S), ("locks/old.lock", STALE_LOCK_S), ("locks/other", STALE_LOCK_S)]:
        (home / "v1" / name).write_bytes(b"")
        age(home / "v1" / name, seconds + 60)
    for name in ("files/tmp/young", "locks/young.lock"):
        (home / "v1" / name).write_bytes(b"")
    (home / "xla").mkdir()
    (home / "xla/executable").write_bytes(b"x" * 1024)
    dry = run("gc", "--dry-run")
    assert dry.status == 0 and len(raw(home)) == 2 and (home / "v0").exists() and "would be freed" in dry.lines[-1]
    result = run("gc")
    assert (result.status, result.err) == (0, "")
    went = [line.split(" (")[0] for line in result.lines if line.startswith("removed")]
    assert [name.rsplit(" ", 1)[0] for name in went] == [
        "removed set-aside entry", "removed folder of an old layout", "removed broken database", "removed abandoned draft",
        "removed lock nobody holds",
    ]  # fmt: skip
    assert "5 things, 4.9 KiB freed" in result.lines[-1] and "1.0 KiB" in result.lines[-2] and "xla" in result.lines[-2]
    left = sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file() and path.name != "cache.db")
    assert left == ["v1/files/tmp/young", "v1/locks/other", "v1/locks/young.lock", "xla/executable"] and len(raw(home)) == 1
    assert (home / "v2").exists() and not (home / "v0").exists()
    assert run("gc").lines[-1] == f"{home}: 0 things, 0 B freed"


def test_a_lock_that_is_held_stays(run: Any, home: Path) -> None:
    import filelock

    (home / "v1/locks").mkdir(parents=True)
    with filelock.FileLock(home / "v1/locks/held.lock"):
        age(home / "v1/locks/held.lock", STALE_LOCK_S + 60)
        result = run("gc")
    assert result.status == 1 and "NOT removed: lock nobody holds held.lock" in result.out and (home / "v1/locks/held.lock").exists()


def test_links_are_not_followed(run: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/file").write_text("mine")
    (home / "v1").mkdir(parents=True)
    (home / "v0").symlink_to(tmp_path / "precious")
    (home / "v1/local.broken-0-0").mkdir()
    (home / "v1/local.broken-0-0/link").symlink_to(tmp_path / "precious")
    assert run("gc").status == 0
    assert (tmp_path / "precious/file").read_text() == "mine" and not (home / "v1/local.broken-0-0").exists()


def test_old_and_stale_records(run: Any, make: Any, fill: Any, has: Any, home: Path) -> None:
    from helion_rt.runtime.standing import toolchain_here
    from helion_rt.tuning.space import SPACE_VERSION

    here = {"toolchain": toolchain_here(), "space_version": SPACE_VERSION}
    fill(home, make(key=1, **here), make(key=2, **here, date="2026-01-01T00:00:00Z"), make(key=3, **{**here, "space_version": 0}),
         make(key=4, **{**here, "toolchain": {**toolchain_here(), "jax": "0.0.1"}}))  # fmt: skip
    LocalTier(home).put_program("alias", b"of another version")
    result = run("gc", "--stale", "--dry-run")
    assert all(reason in result.out for reason in ("not of this version", "jax 0.0.1, here", "space of configs 0, here"))
    assert len(has(home)) == 4
    assert run("gc", "--stale").status == 0 and set(has(home)) == {"kernel_1 v5e", "kernel_2 v5e"}
    assert run("gc", "--older-than", "2026-06-01").status == 0 and list(has(home)) == ["kernel_1 v5e"]
    assert LocalTier(home).get_program("alias") is None


def test_room(run: Any, make: Any, fill: Any, has: Any, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(home, *(make(key=n, date=f"2026-11-{10 + n}T00:00:00Z") for n in range(5)))
    LocalTier(home).put_program("alias", b"x" * 100_000)
    size = os.path.getsize(home / "v1/local/cache.db")
    one = len(encode_record(make(key=1)))
    assert run("gc", "--max-bytes", 3 * one + 10).status == 0
    assert set(has(home)) == {"kernel_2 v5e", "kernel_3 v5e", "kernel_4 v5e"} and LocalTier(home).get_program("alias") is None
    assert os.path.getsize(home / "v1/local/cache.db") < size - 90_000
    assert run("gc", "--max-bytes", "1G").lines[-1].endswith("0 things, 0 B freed")
    for bad in ("-1", "much", "1.5G", ""):
        with pytest.raises(SystemExit) as stop:
            main(["cache", "gc", f"--max-bytes={bad}"])
        assert stop.value.code == 2 and "--max-bytes" in capsys.readouterr().err


def test_programs_go_before_records_and_the_oldest_first(make: Callable[..., Record]) -> None:
    entries = [Entry("r-1", 10, "2026-01-01", make()), Entry("r-2", 10, "2026-01-02", make()), Entry("p-1", 10, "2026-01-03")]
    assert [entry.name for entry in too_many(entries, 0)] == ["p-1", "r-1", "r-2"]
    assert [entry.name for entry in too_many(entries, 20)] == ["p-1"] and not list(too_many(entries, 30))


def test_gc_of_files(make: Callable[..., Record], run: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("helion_rt.database.tier.is_network_file_system", lambda path: True)
    tier = LocalTier(home)
    assert tier.put(make(key=1)) and tier.put(make(key=2, date="2020-01-01T00:00:00Z")) and isinstance(tier.store, FileStore)
    plant(home, f"r-{make(key=3).key.digest}", JUNK)
    tier.get(make(key=3).key)
    result = run("gc", "--older-than", "2021-01-01")
    assert result.status == 0 and [line.split(" (")[0].split()[1] for line in result.lines[:2]] == ["set-aside", "record"]
    assert [record.kernel for record in LocalTier(home).records()] == ["kernel_1"] and run("verify").status == 0


def test_gc_of_a_shared_tier(run: Any, make: Any, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    tier = open_shared(f"file://{shared}", trust=Trust())
    for key, date in ((1, "2026-11-29"), (2, "2020-01-01")):
        tier.put(make(key=key, date=f"{date}T00:00:00Z"))
    result = run("gc", "--older-than", "2021-01-01", "--dir", f"file://{shared}")
    assert result.status == 0 and "1 things" in result.lines[-1] and list(tier.digests()) == [make(key=1).key.digest]


def test_what_cannot_be_removed_is_told(run: Any, make: Any, fill: Any, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from helion_rt.database.sqlite_store import SqliteStore
    from helion_rt.database.store import Fault, StoreError

    def refuse(self: SqliteStore, name: str) -> bool:
        raise StoreError(Fault.UNWRITABLE, "attempt to write a readonly database")

    fill(home, make())
    monkeypatch.setattr(SqliteStore, "remove", refuse)
    result = run("gc", "--max-bytes", "0")
    assert result.status == 1 and "NOT removed: record" in result.out and "readonly" in result.err and "1 things could not" in result.err


# stats


def test_stats(run: Any, make: Any, fill: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(home, make(key=1), make(key=2), make(key=3, kernel="kernel_1", target="v6e\x1b"))
    shared = tmp_path / "shared"
    shared.mkdir()
    open_shared(f"file://{shared}", trust=Trust()).put(make(key=7))
    monkeypatch.setenv("HELION_RT_SHARED", f"file://{shared} redis://me:secret@127.0.0.1:1/0")
    text = run("stats")
    assert text.status == 0 and f"{home}: 3 records, " in text.out and "\x1b" not in text.out and "secret" not in text.out
    assert "       2  kernel_1" in text.out and "       3  measured" in text.out and "       3  winner" in text.out
    assert f"shared tier file://{shared} (write-through): 1 records" in text.out and "cannot be asked: " in text.out
    found = json.loads(run("stats", "--json").out)
    assert found["records"] == 3 and found["by"]["kernel"] == {"kernel_1": 2, "kernel_2": 1} and found["disk_bytes"]["v1"] > 1000
    assert [tier["records"] for tier in found["tiers"][:2]] == [1, None] and found["tiers"][2]["tier"] == "shipped"
    assert found["record_bytes"] == sum(len(encode_record(record)) for record in LocalTier(home).records())


def test_stats_of_nothing(run: Any, home: Path) -> None:
    assert run("stats", "--dir", home).lines == [f"{home}: 0 records, 0 B"] and not home.exists()
