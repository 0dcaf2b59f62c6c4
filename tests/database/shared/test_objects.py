"""Object stores as they differ: conditions that are told in other words, not known, or ignored; answers that never come."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from helion_rt.database.shared import SharedError
from helion_rt.database.shared.files import FilesEngine
from helion_rt.database.shared.objects import ObjectFiles

DIGEST = "ab" * 32


class StoreSays(OSError):
    """An error of a client that has the store's answer as its cause, as s3fs' have."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.__cause__ = Answer(code)


class Answer(Exception):
    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


class Store:
    """A bucket in memory, as fsspec shows one. ``create`` is what it does when it is asked for a conditional put."""

    async_impl = False

    def __init__(self, create: Any) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.clock = 0.0
        self.create = create

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> None:
        if mode == "create":
            self.create(self, path)
        self.clock += 1.0
        self.objects[path] = data, self.clock

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        if path not in self.objects:
            raise FileNotFoundError(path)
        data = self.objects[path][0]
        if not data:
            raise StoreSays("InvalidRange")
        return data[start:end]

    def info(self, path: str) -> dict[str, Any]:
        return {"name": path, "type": "file", "size": len(self.objects[path][0]), "mtime": self.objects[path][1]}

    def find(self, path: str, prefix: str, detail: bool) -> dict[str, Any]:
        return {name: self.info(name) for name in self.objects if name.startswith(f"{path}/{prefix}")}

    def rm_file(self, path: str) -> None:
        del self.objects[path]


def conditional(code: str | None) -> Any:
    def create(store: Store, path: str) -> None:
        if path in store.objects:
            raise FileExistsError(path) if code is None else StoreSays(code)

    return create


def unknown(store: Store, path: str) -> None:
    raise StoreSays("NotImplemented")


def ignored(store: Store, path: str) -> None:
    pass


def files_on(store: Any, timeout: float = 2.0) -> ObjectFiles:
    files = ObjectFiles("s3", "bucket/x", {}, timeout)
    files._opened = store
    return files


@pytest.mark.parametrize(
    "create", [conditional(None), conditional("PreconditionFailed"), conditional("ConditionalRequestConflict"), unknown]
)
def test_created_once(create: Any) -> None:
    files = files_on(Store(create))
    assert files.create("a", b"1")
    assert not files.create("a", b"2")
    assert files.read("a", 10) == b"1"


@pytest.mark.parametrize("create", [conditional(None), unknown, ignored])
def test_leases_on_each(create: Any) -> None:
    store = Store(create)
    first, second = FilesEngine(files_on(store)), FilesEngine(files_on(store))
    assert first.take(DIGEST, "a", 600) and not second.take(DIGEST, "b", 600)
    assert first.renew(DIGEST, "a", 600)
    first.release(DIGEST, "a")
    assert second.take(DIGEST, "b", 600) and not first.renew(DIGEST, "a", 600)


def test_another_error_is_told() -> None:
    def create(store: Store, path: str) -> None:
        raise StoreSays("AccessDenied")

    with pytest.raises(SharedError, match="AccessDenied"):
        files_on(Store(create)).create("a", b"1")


def test_who_was_overtaken_knows_where_conditions_are_ignored() -> None:
    store = Store(ignored)
    files = files_on(store)
    pipe = store.pipe_file

    def overtaken(path: str, data: bytes, mode: str = "overwrite") -> None:
        pipe(path, data, mode)
        pipe(path, b"of another", mode)

    store.pipe_file = overtaken  # type: ignore[method-assign]
    assert not files.create("a", b"mine")


def test_an_empty_object_and_a_long_one() -> None:
    files = files_on(Store(ignored))
    files.publish("empty", b"")
    files.publish("long", b"x" * 11)
    assert files.read("empty", 10) == files.read("long", 10) == b""
    assert files.read("none", 10) is None


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(60)
    loop.close()


def test_an_answer_that_never_comes_is_waited_for_so_long_and_ended(loop: asyncio.AbstractEventLoop) -> None:
    ended = threading.Event()

    class Hung:
        async_impl = True

        def __init__(self) -> None:
            self.loop = loop

        async def _cat_file(self, path: str, start: int, end: int) -> bytes:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.set()
                raise
            return b""

    with pytest.raises(SharedError, match=r"no answer within 0\.1 s"):
        files_on(Hung(), timeout=0.1).read("a", 10)
    assert ended.wait(60)
