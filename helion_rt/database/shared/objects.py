"""Objects in a bucket (S3, GCS, what speaks like them), through fsspec. Its event loop starts at the first use, never before."""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Collection, Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any

from .engine import SharedError
from .files import LAYOUT, Entry

_CONNECT_S = 30.0  # the first use may take this long: it imports the client, which looks for credentials
_WRITTEN = ("LastModified", "updated", "mtime", "last_modified", "created")  # how stores call the time at which an object was written
_EXISTS = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")  # a conditional put that came second
_NO_CONDITIONS = ("NotImplemented", "501")
_EMPTY = ("InvalidRange", "416")  # the answer to a range of an object without bytes


class ObjectFiles:
    """``Files`` under ``root`` (``bucket/prefix``) of fsspec's ``protocol``. ``options``: ``endpoint_url``, ``region``. Each
    request gets ``timeout`` seconds and no second try: who asks knows better when to ask again.

    Exclusive creation is the store's conditional put (S3's ``If-None-Match``, GCS' generation match). A store that ignores the
    condition lets two processes hold one lease: what both find is merged, so that costs work and nothing else.
    """

    granularity = 1.0  # S3 tells when an object was written in whole seconds

    def __init__(self, protocol: str, root: str, options: Mapping[str, str], timeout: float) -> None:
        self._protocol, self._root, self._options, self._timeout = protocol, root, dict(options), timeout
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._opened: Any = None  # fsspec's file system

    def publish(self, path: str, data: bytes) -> None:
        with self._told():
            self._ask("pipe_file", path, data)

    def create(self, path: str, data: bytes) -> bool:
        with self._told():
            try:
                self._ask("pipe_file", path, data, mode="create")
            except Exception as error:
                if isinstance(error, FileExistsError) or _code(error) in _EXISTS:
                    return False
                if _code(error) not in _NO_CONDITIONS:
                    raise
                if self.read(path, len(data)) is not None:
                    return False
                self._ask("pipe_file", path, data)
        # Where conditions are unknown the last writer has it: this one may have been overtaken already.
        return self.read(path, len(data)) == data

    def read(self, path: str, limit: int) -> bytes | None:
        with self._told():
            try:
                data = self._ask("cat_file", path, start=0, end=limit + 1)  # a range: it may be of any size
            except Exception as error:
                if _is_missing(error):
                    return None
                if _code(error) in _EMPTY:
                    return b""
                raise
        return data if len(data) <= limit else b""

    def list(self, directory: str, prefix: str = "") -> list[Entry]:
        entries = []
        with self._told():
            for info in self._listed("find", directory, prefix=prefix, detail=True):
                name = self._within(info, directory)
                if name.startswith(prefix) and "/" not in name and info.get("type") == "file":
                    entries.append(Entry(name, int(info.get("size") or 0), _written(info)))
        return entries

    def directories(self, directory: str) -> list[str]:
        return [self._within(info, directory) for info in self._listed("ls", directory, detail=True) if info.get("type") == "directory"]

    def remove(self, path: str) -> bool:
        with self._told():
            try:
                self._ask("rm_file", path)
            except Exception as error:
                if not _is_missing(error):
                    raise
                return False
            return True

    def now(self) -> float:
        path = f"tmp/{secrets.token_hex(12)}"
        with self._told():
            self._ask("pipe_file", path, b"?")
            try:
                return _written(self._ask("info", path))
            finally:
                self._ask("rm_file", path)

    def close(self) -> None:
        with self._lock:
            self._opened = None

    def _listed(self, method: str, directory: str, **how: Any) -> Collection[Mapping[str, Any]]:
        with self._told():
            try:
                found = self._ask(method, directory, **how)
            except Exception as error:
                if _is_missing(error):
                    return []
                raise
            return found.values() if isinstance(found, dict) else found

    def _within(self, info: Mapping[str, Any], directory: str) -> str:
        """The name of a listed object in its directory."""
        return str(info["name"]).strip("/").removeprefix(f"{self._root}/{LAYOUT}/{directory}/")

    def _ask(self, method: str, path: str, *arguments: Any, **how: Any) -> Any:
        """One operation of fsspec, within the time. Raises what it raises."""
        store = self._store()
        full = f"{self._root}/{LAYOUT}/{path}"
        if not store.async_impl:
            return getattr(store, method)(full, *arguments, **how)
        # The coroutine itself, so that what takes too long is ended and does not pile up on the loop.
        return _answer(store, getattr(store, f"_{method}")(full, *arguments, **how), self._timeout)

    def _store(self) -> Any:
        with self._lock:
            if self._opened is None or self._pid != os.getpid():  # the loop's thread does not live in a fork
                self._opened, self._pid = self._open(), os.getpid()
            return self._opened

    def _open(self) -> Any:
        import fsspec  # late, and the implementation with it: it takes a second, which only the exchange thread may take

        options: dict[str, Any] = {name: value for name, value in self._options.items() if name == "endpoint_url"}
        if self._protocol == "s3":
            options["config_kwargs"] = {
                "connect_timeout": self._timeout, "read_timeout": self._timeout, "retries": {"total_max_attempts": 1},
            }  # fmt: skip
            options["client_kwargs"] = {"region_name": self._options["region"]} if "region" in self._options else {}
        store: Any = fsspec.filesystem(self._protocol, skip_instance_cache=True, use_listings_cache=False, **options)
        store.retries = 1  # s3fs' own attempts
        if hasattr(store, "set_session"):
            _answer(store, store.set_session(), _CONNECT_S)
        return store

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """What clients raise (each has its own family of errors) as SharedError."""
        try:
            yield
        except SharedError:
            raise
        except Exception as error:
            said = str(error) or str(error.__cause__ or "")
            raise SharedError(f"{self._protocol}://{self._root}: {type(error).__name__}: {said}") from error


def _answer(store: Any, coroutine: Coroutine[Any, Any, Any], timeout: float) -> Any:
    """What a coroutine comes to on the loop of ``store``. Raises TimeoutError, and what it raises."""
    import asyncio  # late: it comes with fsspec

    answer = asyncio.run_coroutine_threadsafe(coroutine, store.loop)
    try:
        return answer.result(timeout)
    except TimeoutError:
        answer.cancel()
        raise TimeoutError(f"no answer within {timeout:g} s") from None


def _code(error: BaseException) -> str:
    """The store's own word for what went wrong, where the client kept it."""
    for link in (error, error.__cause__):
        answer = getattr(link, "response", None)
        if isinstance(answer, dict):
            return str(answer.get("Error", {}).get("Code", ""))
        code = getattr(link, "code", None)  # gcsfs
        if isinstance(code, (int, str)):
            return str(code)
    return ""


def _is_missing(error: BaseException) -> bool:
    """Is it the object that is missing, not the bucket?"""
    return isinstance(error, FileNotFoundError) and _code(error) != "NoSuchBucket"


def _written(info: Mapping[str, Any]) -> float:
    """When an object was written, in seconds. Raises ValueError where the store does not tell."""
    when = next((info[name] for name in _WRITTEN if info.get(name) is not None), None)
    if when is None:
        raise ValueError("the store does not tell when an object was written")
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    return when.timestamp() if isinstance(when, datetime) else float(when)
