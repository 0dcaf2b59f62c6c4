"""Where records are: the database of a machine, a shared tier, a pack. The actions ask and tell all of them alike."""

from __future__ import annotations

import argparse
import fnmatch
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from helion_rt.database import Key, LocalTier, Origin, Record, better, encode_record, open_local
from helion_rt.database import pack as packs
from helion_rt.database.shipped import ShippedTier, shipped_directory
from helion_rt.database.signing import Trust
from helion_rt.database.store import Fault, StoreError
from helion_rt.exc import ConfigError
from helion_rt.settings import CACHE_DIR, Settings, without_password

SHIPPED = "shipped"
_NEWER = "a later version of helion_rt has stored an entry there that this one must not touch"


class Place:
    """Records somewhere. ``name`` is for people. Methods raise ``StoreError`` where the place cannot be asked or written."""

    name: str

    def records(self) -> Iterator[Record]:
        """Every good record, as it is read."""
        raise NotImplementedError

    def get(self, key: Key) -> Record | None:
        raise NotImplementedError

    def put(self, record: Record) -> None:
        """Merge ``record`` with what is there."""
        raise StoreError(Fault.UNWRITABLE, f"{self.name} is a pack: use `cache export` to write one")

    def forget(self, digest: str) -> bool:
        """Remove the record of a key. False if there was none."""
        raise StoreError(Fault.UNWRITABLE, f"{self.name} is a pack: use `cache export` to write one")

    def troubles(self) -> list[str]:
        """What could not be read so far."""
        return []

    def close(self) -> None: ...


class LocalPlace(Place):
    """The database in a directory of this machine. A directory that is not there is empty, and is not made by looking."""

    def __init__(self, directory: Path, trust: Trust) -> None:
        self.tier: LocalTier = open_local(directory, trust=trust)
        self.name, self.trust = str(directory), trust
        self.directory = directory

    def records(self) -> Iterator[Record]:
        return self.tier.records()

    def get(self, key: Key) -> Record | None:
        return self.tier.get(key)

    def put(self, record: Record) -> None:
        newer = self.tier.stats().newer
        if not self.tier.put(record):
            if self.tier.stats().newer > newer:
                raise StoreError(Fault.NEWER, _NEWER)
            raise StoreError(Fault.UNWRITABLE, f"{self.name} cannot be written")

    def forget(self, digest: str) -> bool:
        return self.tier.forget(digest)

    def troubles(self) -> list[str]:
        stats, found = self.tier.stats(), []
        if stats.bad or stats.databases_set_aside:
            found.append(f"set aside: {stats.bad} bad records, {stats.databases_set_aside} broken databases")
        if stats.newer:
            found.append(f"{stats.newer} entries of a later version")
        if stats.untrusted:
            found.append(f"{stats.untrusted} entries not signed as HELION_RT_SIGNED_ONLY asks for")
        return found

    def close(self) -> None:
        self.tier.close()


class SharedPlace(Place):
    """A shared tier. One that cannot be reached is told of when it is asked."""

    def __init__(self, url: str, trust: Trust) -> None:
        from helion_rt.database.shared import open_shared  # late: who looks into a directory needs no engine

        self.tier = open_shared(url, trust=trust, timeout=10.0)
        self.name = self.tier.url  # without its password

    def records(self) -> Iterator[Record]:
        return self.tier.records()

    def get(self, key: Key) -> Record | None:
        return self.tier.get(key)

    def put(self, record: Record) -> None:
        newer = self.tier.stats().newer
        self.tier.put(record)
        if self.tier.stats().newer > newer:
            raise StoreError(Fault.UNWRITABLE, "a later version of helion_rt has stored an entry there that this one must not touch")

    def forget(self, digest: str) -> bool:
        return self.tier.forget(digest)

    def troubles(self) -> list[str]:
        stats = self.tier.stats()
        found = [f"{stats.bad} bad entries"] if stats.bad else []
        return [*found, f"{stats.newer} entries of a later version"] if stats.newer else found

    def close(self) -> None:
        self.tier.close()


class PackPlace(Place):
    """A pack, read whole at once."""

    def __init__(self, file: Path, trust: Trust) -> None:
        self.name = str(file)
        found, self.problems = packs.read(file, trust)
        self._records = {record.key.digest: record for record in found}

    def records(self) -> Iterator[Record]:
        return iter(self._records.values())

    def get(self, key: Key) -> Record | None:
        return self._records.get(key.digest)

    def troubles(self) -> list[str]:
        return [f"{self.name}: {problem}" for problem in self.problems]


class ShippedPlace(Place):
    """What this installation came with: read, never written."""

    def __init__(self) -> None:
        self.tier, self.name = ShippedTier(), SHIPPED

    def records(self) -> Iterator[Record]:
        return self.tier.records()

    def get(self, key: Key) -> Record | None:
        return self.tier.get(key)

    def put(self, record: Record) -> None:
        raise StoreError(Fault.UNWRITABLE, "what is shipped is not changed: a record in the local database goes before it")

    def forget(self, digest: str) -> bool:
        raise StoreError(Fault.UNWRITABLE, "what is shipped cannot be forgotten; HELION_RT_TIERS=shipped=off ignores it")

    def troubles(self) -> list[str]:
        return [f"{self.tier.bad} damaged packs or lines"] if self.tier.bad else []


def trust_of(settings: Settings) -> Trust:
    return Trust.from_settings(settings)


def add_place(parser: argparse.ArgumentParser) -> None:
    """``--dir``: the place that an action looks into or changes."""
    parser.add_argument(
        "--dir",
        metavar="DIRECTORY|URL|shipped",
        help=f"this database, shared tier, or what the package came with (default: {CACHE_DIR}, or the platform's folder)",
    )


def add_filters(parser: argparse.ArgumentParser) -> None:
    """``--kernel`` and ``--target``: which records."""
    parser.add_argument("--kernel", metavar="NAME", help="only records of this kernel; * and ? as in file names")
    parser.add_argument("--target", metavar="TARGET", help="only records of this target; * and ? as in file names")


def chosen(records: Iterable[Record], args: argparse.Namespace) -> Iterator[Record]:
    """The records that the filters let through."""
    for record in records:
        if (args.kernel is None or fnmatch.fnmatchcase(record.kernel, args.kernel)) and (
            args.target is None or _is_target(record.key.target, args.target)
        ):
            yield record


def _is_target(name: str, pattern: str) -> bool:
    """``cpu`` is any processor, whatever its instructions and cores (``cpu/x86_64-v3/2``)."""
    return fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name.partition("/")[0], pattern)


def directory_of(args: argparse.Namespace) -> str:
    """The directory or URL that was asked for, for people. Raises ``ConfigError``."""
    if args.dir == SHIPPED:
        return str(shipped_directory() or SHIPPED)
    where = str(Settings.from_env().cache_dir) if args.dir is None else args.dir
    return without_password(where) if is_url(where) else str(_expanded(where))


def place_of(args: argparse.Namespace) -> Place:
    """The place of ``--dir``: a directory, a shared tier, or what is shipped. Raises ``ConfigError``."""
    if args.dir == SHIPPED:
        return ShippedPlace()
    where = str(Settings.from_env().cache_dir) if args.dir is None else args.dir
    if is_url(where):
        return SharedPlace(where, trust_of(Settings.from_env()))
    directory = _expanded(where)
    if os.path.lexists(directory) and not os.path.isdir(directory):
        raise ConfigError(f"{directory} is not a directory", hint=f"give --dir, or set {CACHE_DIR}, to one")
    return LocalPlace(directory, trust_of(Settings.from_env()))


def open_place(where: str) -> Place:
    """A directory, a URL, a pack or ``shipped``, which is there. Raises ``ConfigError``."""
    trust = trust_of(Settings.from_env())
    if where == SHIPPED:
        return ShippedPlace()
    if is_url(where):
        return SharedPlace(where, trust)
    path = _expanded(where)
    try:
        found = os.stat(path)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"{path}: {reason}", hint="give the directory of a database, the URL of a shared tier, or a pack") from None
    return LocalPlace(path, trust) if stat.S_ISDIR(found.st_mode) else PackPlace(path, trust)


def is_url(where: str) -> bool:
    return "://" in where


def _expanded(where: str) -> Path:
    try:
        return Path(where).expanduser()
    except RuntimeError as error:  # a ~user that does not exist
        raise ConfigError(f"{where}: {error}") from None


def alike(a: Record, b: Record) -> bool:
    """Do two records say the same? How they came to where they are is no matter."""
    return encode_record(packs.with_origin(a)) == encode_record(packs.with_origin(b))  # for == true and 1 are the same


def merged(a: Record, b: Record) -> Record:
    """What a tier that has ``a`` keeps when ``b`` comes: ``a`` itself where nothing is gained."""
    best = better(a, b)
    return a if alike(best, a) else best


def imported(record: Record) -> Record:
    """``record`` as one that came from elsewhere: a hint here, until it was tried."""
    return replace(record, origin=Origin.IMPORTED)
