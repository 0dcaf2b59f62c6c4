"""A cache that somebody else may write to is as good as none: it is told once, and nothing is read from it or written to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from helion_rt.database import LocalTier, Record, StoreKind, Trust
from helion_rt.database import tier as tier_module
from helion_rt.database.paths import who_else_may_write

Make = Callable[..., Record]

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="users have no numbers here")


@pytest.fixture(params=[StoreKind.SQLITE, StoreKind.FILES], ids=["sqlite", "files"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreKind:
    monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: request.param is StoreKind.FILES)
    return request.param


def places(directory: Path, store: StoreKind, record: Record) -> dict[str, Path]:
    name = f"r-{record.key.digest}"
    inner = directory / "v1" / ("local" if store is StoreKind.SQLITE else "files")
    entry = inner / "cache.db" if store is StoreKind.SQLITE else next(inner.glob(f"*/{name}.*.rec"))
    return {"directory": directory, "layout": directory / "v1", "inner": inner, "around": entry.parent, "entry": entry}


@pytest.mark.parametrize("place", ["directory", "layout", "inner", "around", "entry"])
def test_what_everybody_may_write_to_is_off(
    store: StoreKind, tmp_path: Path, make_record: Make, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "helion_rt.database")
    directory = tmp_path / "cache"
    assert LocalTier(directory).put(make_record(9))
    path = places(directory, store, make_record())[place]
    mode = path.stat().st_mode & 0o777
    path.chmod(mode | 0o002)
    before = {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()}
    tier = LocalTier(directory)
    assert tier.get(make_record().key) is None and list(tier.records()) == []
    for n in (1, 3, 2):
        assert not tier.put(make_record(n))
    assert tier.get(make_record().key) == make_record(3) and list(tier.records()) == [make_record(3)]
    assert {file: file.read_bytes() for file in directory.rglob("*") if file.is_file()} == before
    (message,) = [record.getMessage() for record in caplog.records]
    assert f"everybody may write to {path}" in message and "chmod" in message
    assert tier.stats().bad == 0
    path.chmod(mode)
    assert tier.put(make_record(1, key=1)) and tier.get(make_record().key) == make_record(9) and tier.stats().in_memory == 0


def test_what_the_group_may_write_to_is_off_below_the_directory_that_was_given(store: StoreKind, tmp_path: Path, make_record: Make) -> None:
    """That one is often made with a umask of 002, and nobody can put anything of ours into it."""
    directory = tmp_path / "cache"
    assert LocalTier(directory).put(make_record(9))
    for place, path in places(directory, store, make_record()).items():
        mode = path.stat().st_mode & 0o777
        path.chmod(mode | 0o020)
        assert LocalTier(directory).get(make_record().key) == (make_record(9) if place == "directory" else None)
        path.chmod(mode)


def test_a_directory_like_tmp_is_a_place_for_a_cache(store: StoreKind, tmp_path: Path, make_record: Make) -> None:
    tmp_path.chmod(0o1777)
    assert LocalTier(tmp_path).put(make_record(1)) and LocalTier(tmp_path).get(make_record().key) == make_record(1)
    assert who_else_may_write(tmp_path) and not who_else_may_write(tmp_path, outer=True)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("place", ["layout", "inner", "around", "entry"])
def test_what_belongs_to_another_user_is_off(store: StoreKind, tmp_path: Path, make_record: Make, place: str) -> None:
    directory = tmp_path / "cache"
    assert LocalTier(directory).put(make_record(9))
    path = places(directory, store, make_record())[place]
    os.chown(path, 12345, -1)
    tier = LocalTier(directory)
    assert tier.get(make_record().key) is None and not tier.put(make_record(1)) and tier.get(make_record().key) == make_record(1)
    os.chown(path, 0, -1)
    assert LocalTier(directory).get(make_record().key) == make_record(9)


def test_where_signatures_are_required_rights_do_not_matter(store: StoreKind, tmp_path: Path, make_record: Make) -> None:
    trust = Trust(b"secret", required=True)
    directory = tmp_path / "cache"
    assert LocalTier(directory, trust=trust).put(make_record(1))
    for path in [directory, *directory.rglob("*")]:
        path.chmod(0o777)
    tier = LocalTier(directory, trust=trust)
    assert tier.get(make_record().key) == make_record(1) and tier.put(make_record(2)) and tier.get(make_record().key) == make_record(2)


def test_what_is_made_is_private_whatever_the_umask(store: StoreKind, tmp_path: Path, make_record: Make) -> None:
    old = os.umask(0)
    try:
        assert LocalTier(tmp_path / "cache").put(make_record(1))
    finally:
        os.umask(old)
    tier = LocalTier(tmp_path / "cache")
    assert tier.get(make_record().key) == make_record(1) and tier.put(make_record(2))
