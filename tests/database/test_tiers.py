"""All tiers as one: who serves, who is told, and that a shared tier holds up nobody."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_shared import FakeShared

from helion_rt.database import Evidence, EvidenceKind, Key, Origin, Record, Status, better, exchange, open_local
from helion_rt.database.exchange import Holder
from helion_rt.database.tiers import Prefer, Shared, Tiers, open_tiers
from helion_rt.exc import ConfigError
from helion_rt.settings import Settings, TierMode, TierModes

Make = Callable[..., Record]
MODES = TierModes(shipped=TierMode.OFF)


class Shipped:
    """As ``ShippedTier``."""

    directory, bad = None, 0

    def __init__(self, *records: Record) -> None:
        self.stored = {record.key.digest: replace(record, origin=Origin.SHIPPED) for record in records}

    def get(self, key: Key) -> Record | None:
        return self.stored.get(key.digest)

    def records(self) -> Iterator[Record]:
        yield from self.stored.values()


@pytest.fixture
def make_tiers(tmp_path: Path) -> Iterator[Callable[..., Tiers]]:
    made = []

    def make(
        *shared: FakeShared, mode: TierMode = TierMode.WRITE_THROUGH, shipped: Sequence[Record] = (), modes: TierModes | None = None,
        timeout: float = 10.0, directory: Path = tmp_path / "cache", prefer: Prefer = better,
    ) -> Tiers:  # fmt: skip
        opened: list[Any] = [Shared(lambda tier=tier: tier, mode) for tier in shared]  # type: ignore[misc]
        own: Any = Shipped(*shipped)
        tiers = Tiers(open_local(directory), opened, own, modes=modes or TierModes(), timeout=timeout, lease_seconds=30.0, prefer=prefer)
        made.append((tiers, shared))
        return tiers

    yield make
    for tiers, shared in made:
        for tier in shared:
            tier.gate.set()
        tiers.close()


def told() -> tuple[Callable[[Record], None], Callable[[], Record]]:
    """A callback, and what waits for its next call."""
    found, event = [], threading.Semaphore(0)

    def then(record: Record) -> None:
        found.append(record)
        event.release()

    def wait() -> Record:
        assert event.acquire(timeout=30)
        return found.pop(0)

    return then, wait


class TestHere:
    def test_the_first_hit_serves(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shipped, local = make_record(1, evidence=Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0)), make_record(2)
        tiers = make_tiers(shipped=[shipped, make_record(5, key=1)])
        assert tiers.get(make_record(key=1).key) == replace(make_record(5, key=1), origin=Origin.SHIPPED)
        assert tiers.put(local) and tiers.get(local.key) == local
        assert tiers.get(make_record(key=2).key) is None
        assert {record.key for record in tiers.records()} == {local.key, make_record(key=1).key}

    def test_a_hit_in_memory_reads_nothing(
        self, make_tiers: Callable[..., Tiers], make_record: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiers = make_tiers()
        tiers.put(make_record(1))
        assert tiers.get(make_record().key) == make_record(1)
        monkeypatch.setattr(tiers.local, "get", None)
        assert tiers.get(make_record().key) == make_record(1)

    def test_refresh_sees_what_another_process_stored(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        tiers = make_tiers()
        tiers.put(make_record(1))
        assert tiers.get(make_record().key) == make_record(1)
        open_local(tiers.directory).put(make_record(2))
        assert tiers.refresh(make_record().key) == make_record(2) == tiers.get(make_record().key)

    def test_a_put_while_another_thread_reads_is_not_lost(
        self, make_tiers: Callable[..., Tiers], make_record: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tiers = make_tiers()
        tiers.put(make_record(1))
        real = tiers.local.get

        def slow(key: Key) -> Record | None:
            found = real(key)
            monkeypatch.setattr(tiers.local, "get", real)
            tiers.put(make_record(2))  # meanwhile
            return found

        monkeypatch.setattr(tiers.local, "get", slow)
        assert tiers.get(make_record().key) == make_record(1)
        assert tiers.get(make_record().key) == make_record(2)

    def test_a_winner_that_was_rolled_back_does_not_come_back_from_the_shipped_tier(
        self, make_tiers: Callable[..., Tiers], make_record: Make
    ) -> None:
        shipped = make_record(1, evidence=Evidence(EvidenceKind.SCHEDULED, 1.0, 2.0))
        tiers = make_tiers(shipped=[shipped])
        found = tiers.get(shipped.key)
        assert found is not None
        tiers.put(found.rolled_back())
        for again in (tiers.get(shipped.key), tiers.refresh(shipped.key)):
            assert again is not None and (again.is_void or again.status is not Status.WINNER) and shipped.config in again.quarantined

    @pytest.mark.parametrize("mode", [TierMode.READ_ONLY, TierMode.OFF])
    def test_modes_of_the_local_tier(self, make_tiers: Callable[..., Tiers], make_record: Make, mode: TierMode, tmp_path: Path) -> None:
        open_local(tmp_path / "cache").put(make_record(1))
        tiers = make_tiers(modes=replace(MODES, local=mode))
        assert tiers.get(make_record().key) == (make_record(1) if mode.reads else None)
        assert not tiers.put(make_record(3)) and tiers.get(make_record().key) == make_record(3)
        assert not tiers.put_program("alias", b"program")
        assert open_local(tmp_path / "cache").get(make_record().key) == make_record(1)

    def test_the_shipped_tier_can_be_off(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        tiers = make_tiers(shipped=[make_record(1)], modes=MODES)
        assert tiers.get(make_record().key) is None and list(tiers.records()) == []


class TestShared:
    def test_what_is_tuned_is_published_and_nobody_who_asks_waits(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        tiers = make_tiers(shared)
        shared.gate.clear()  # it hangs from the start
        tiers.put(make_record(1))
        assert tiers.get(make_record().key) == make_record(1) and tiers.get(make_record(key=1).key) is None
        asked = tiers.ask(make_record(key=1).key)
        assert not asked.settled
        shared.gate.set()
        assert shared.until(lambda: shared.stored == {make_record().key.digest: make_record(1)})
        asked.wait()
        assert asked.settled and {thread for _, thread in shared.calls} == {"helion-rt-exchange"}

    def test_what_a_peer_knows_better_arrives(self, make_tiers: Callable[..., Tiers], make_record: Make, tmp_path: Path) -> None:
        shared = FakeShared()
        shared.plant(make_record(3))
        tiers = make_tiers(shared)
        tiers.local.put(make_record(1))
        then, wait = told()
        assert tiers.get(make_record().key) == make_record(1)
        tiers.ask(make_record().key, then)
        assert wait() == make_record(3)
        assert tiers.get(make_record().key) == make_record(3) == open_local(tmp_path / "cache").get(make_record().key)

    def test_a_tier_that_knows_less_is_told(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        shared.plant(make_record(1))
        tiers = make_tiers(shared)
        for record in (make_record(2), make_record(1, key=1)):
            tiers.local.put(record)
            tiers.ask(record.key, lambda record: pytest.fail("nothing better was there"))
        assert shared.until(lambda: shared.stored == {r.key.digest: r for r in (make_record(2), make_record(1, key=1))})

    def test_what_says_nothing_to_others_is_not_shared(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        tiers = make_tiers(shared, shipped=[make_record(1, key=1)])
        failure = make_record(status=Status.ALL_FAILED, config={}, evidence=Evidence(EvidenceKind.MODELLED))  # nothing could be tried
        tiers.put(failure)
        tiers.get(make_record(key=1).key)
        tiers.put(replace(make_record(1, key=1), origin=Origin.SHIPPED))
        for key in (failure.key, make_record(key=1).key):
            asked = tiers.ask(key)
            asked.wait()
        tiers.close()
        assert shared.stored == {} and shared.count("put") == 0

    def test_a_tombstone_is_shared_and_takes_the_winner_down_everywhere(
        self, make_tiers: Callable[..., Tiers], make_record: Make, tmp_path: Path
    ) -> None:
        shared = FakeShared(tells=True)
        here, there = (make_tiers(shared, directory=tmp_path / name) for name in ("here", "there"))
        then, wait = told()
        there.watch(make_record().key, then, every=1e6)
        assert shared.until(lambda: shared.told)
        here.put(make_record(1))
        assert wait() == make_record(1)
        winner = here.get(make_record().key)
        assert winner is not None
        here.put(winner.rolled_back())
        assert make_record(1).config in wait().quarantined
        there.put(make_record(1))  # by somebody who has not heard of it
        found = there.get(make_record().key)
        assert found is not None and (found.is_void or found.status is not Status.WINNER)

    def test_what_is_preferred_here_stays_here(self, make_tiers: Callable[..., Tiers], make_record: Make, tmp_path: Path) -> None:
        mine, theirs = make_record(1), make_record(2)
        shared = FakeShared()
        shared.plant(theirs)
        tiers = make_tiers(shared, prefer=lambda a, b: a if a.config == mine.config else b if b.config == mine.config else better(a, b))
        tiers.put(mine)
        assert shared.until(lambda: shared.count("put"))
        tiers.ask(mine.key, lambda record: pytest.fail("mine is preferred")).wait()
        tiers.close()
        assert tiers.get(mine.key) == mine == open_local(tmp_path / "cache").get(mine.key) and shared.stored == {mine.key.digest: theirs}

    @pytest.mark.parametrize("mode", [TierMode.READ_ONLY, TierMode.OFF])
    def test_modes_of_a_shared_tier(self, make_tiers: Callable[..., Tiers], make_record: Make, mode: TierMode) -> None:
        shared = FakeShared()
        shared.plant(make_record(3))
        tiers = make_tiers(shared, mode=mode)
        tiers.put(make_record(1, key=1))
        asked = tiers.ask(make_record().key)
        asked.wait()
        with tiers.lease(make_record(key=2).key) as holder:
            assert holder is Holder.NONE
        tiers.close()
        assert tiers.get(make_record().key) == (make_record(3) if mode.reads else None)
        assert {operation for operation, _ in shared.calls} == ({"get", "close"} if mode.reads else set())


class TestFaults:
    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(exchange, "RETRY_FIRST", 0.02)
        monkeypatch.setattr(exchange, "RETRY_MOST", 0.05)

    def test_a_tier_that_is_back_gets_what_it_missed_and_is_asked_again(
        self, make_tiers: Callable[..., Tiers], make_record: Make, caplog: pytest.LogCaptureFixture
    ) -> None:
        shared = FakeShared()
        shared.down = True
        tiers = make_tiers(shared)
        then, wait = told()
        shared.plant(make_record(3, key=1))
        asked = tiers.ask(make_record(key=1).key, then)
        tiers.put(make_record(1))
        asked.wait()
        assert asked.settled and shared.until(lambda: shared.count("get") + shared.count("put") >= 4)
        (status,) = [tier for tier in tiers.status() if tier["tier"] == "shared"]
        assert status["reachable"] is False and status["last_failure"] == "it is down" and status["counts"]["failures"] >= 3
        shared.down = False
        assert wait() == make_record(3, key=1)
        assert shared.until(lambda: make_record().key.digest in shared.stored)
        assert sum("cannot be reached" in record.message for record in caplog.records) == 1

    def test_failures_are_answered_at_once_and_the_pauses_grow(
        self, make_tiers: Callable[..., Tiers], make_record: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(exchange, "RETRY_FIRST", 1000.0)
        monkeypatch.setattr(exchange, "RETRY_MOST", 1500.0)
        shared = FakeShared()
        shared.down = True
        tiers = make_tiers(shared, timeout=1000.0)
        for key in range(3):
            tiers.ask(make_record(key=key).key).wait()
        with tiers.lease(make_record().key) as holder:
            assert holder is Holder.NONE
        assert shared.calls == [("get", "helion-rt-exchange")], "one attempt"
        (status,) = [tier for tier in tiers.status() if tier["tier"] == "shared"]
        assert 400 < status["retry_in_s"] <= 1000 and status["questions"] == 3

    def test_a_tier_that_hangs_holds_up_nobody(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        hung, well = FakeShared("fake://hung"), FakeShared("fake://well")
        hung.gate.clear()
        tiers = make_tiers(hung, well, timeout=0.05)
        tiers.put(make_record(1))
        asked = tiers.ask(make_record(key=1).key)
        asked.wait()
        assert asked.settled and tiers.get(make_record().key) == make_record(1)
        assert well.until(lambda: well.stored)
        with tiers.lease(make_record().key) as holder:
            assert holder is Holder.MINE, "of the next tier"
        tiers.close()
        assert hung.stored == {} and tiers.get(make_record().key) == make_record(1)

    def test_a_lease_that_comes_too_late_is_given_back(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        shared.gate.clear()
        tiers = make_tiers(shared, timeout=0.05)
        with tiers.lease(make_record().key) as holder:
            assert holder is Holder.NONE
        shared.gate.set()
        assert shared.until(lambda: shared.count("release")) and shared.until(lambda: not shared.leases)

    def test_queues_are_bounded(self, make_tiers: Callable[..., Tiers], make_record: Make, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("MAX_QUESTIONS", "MAX_OUTBOX", "MAX_WATCHED"):
            monkeypatch.setattr(exchange, name, 3)
        shared = FakeShared()
        shared.gate.clear()
        tiers = make_tiers(shared, timeout=0.05)
        for n in range(8):
            tiers.put(make_record(1, key=n))
            tiers.ask(make_record(key=n).key)
            tiers.watch(make_record(key=n).key, lambda record: None)
        (status,) = [tier for tier in tiers.status() if tier["tier"] == "shared"]
        assert status["questions"] <= 3 and status["outbox"] <= 3 and status["watched"] == 3 and status["counts"]["dropped"] >= 11
        assert tiers.get(make_record(key=7).key) == make_record(1, key=7)

    def test_a_bug_of_an_engine_costs_one_question(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        real = shared.get
        shared.get = lambda key: (_ for _ in ()).throw(RuntimeError("a bug"))  # type: ignore[method-assign]
        tiers = make_tiers(shared)
        tiers.ask(make_record().key).wait()
        shared.get = real  # type: ignore[method-assign]
        tiers.put(make_record(1))
        assert shared.until(lambda: shared.stored)

    def test_what_a_callback_raises_harms_nobody(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        shared.plant(make_record(1))
        tiers = make_tiers(shared)
        tiers.ask(make_record().key, lambda record: 1 / 0).wait()
        tiers.put(make_record(1, key=1))
        assert shared.until(lambda: len(shared.stored) == 2)


class TestLeases:
    def test_one_holder_and_the_record_comes_before_the_release(
        self, make_tiers: Callable[..., Tiers], make_record: Make, tmp_path: Path
    ) -> None:
        shared = FakeShared()
        here, there = (make_tiers(shared, directory=tmp_path / name) for name in ("here", "there"))
        with here.lease(make_record().key) as mine:
            with there.lease(make_record().key) as theirs:
                assert (mine, theirs) == (Holder.MINE, Holder.OTHERS)
            here.put(make_record(1))
        assert shared.until(lambda: not shared.leases)
        names = [operation for operation, _ in shared.calls]
        assert names.index("put") < names.index("release")
        with there.lease(make_record().key) as again:
            # Without this look a process that had not heard of the record would tune the key again.
            assert again is Holder.MINE and there.get(make_record().key) == make_record(1)

    @pytest.mark.parametrize("waits", [True, False])
    def test_a_bug_after_it_was_taken_leaves_none_behind(self, make_tiers: Callable[..., Tiers], make_record: Make, waits: bool) -> None:
        shared = FakeShared()
        shared.get = lambda key: (_ for _ in ()).throw(RuntimeError("a bug"))  # type: ignore[method-assign]
        if not waits:
            shared.gate.clear()
        tiers = make_tiers(shared, timeout=10.0 if waits else 0.05)
        with tiers.lease(make_record().key) as holder:
            assert holder is (Holder.MINE if waits else Holder.NONE)
        shared.gate.set()
        assert shared.until(lambda: shared.count("release")) and shared.until(lambda: not shared.leases)

    def test_close_publishes_and_gives_back(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        tiers = make_tiers(shared)
        with tiers.lease(make_record().key) as holder:
            assert holder is Holder.MINE
            tiers.put(make_record(1))
        tiers.close()
        assert shared.stored and not shared.leases
        tiers.put(make_record(1, key=1))  # it may be used again
        assert shared.until(lambda: len(shared.stored) == 2)


class TestWatching:
    def test_a_tier_that_does_not_tell_is_asked_again_and_again(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        tiers = make_tiers(shared)
        then, wait = told()
        stop = tiers.watch(make_record().key, then, every=0.02)
        assert shared.until(lambda: shared.count("get") >= 3)
        shared.plant(make_record(1))
        assert wait() == make_record(1)
        shared.plant(make_record(2))
        assert wait() == make_record(2)
        stop()
        (status,) = [tier for tier in tiers.status() if tier["tier"] == "shared"]
        assert status["watched"] == 0

    def test_a_tier_that_tells_is_heard(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared(tells=True)
        tiers = make_tiers(shared)
        then, wait = told()
        tiers.watch(make_record().key, then, every=1e6)
        assert shared.until(lambda: shared.told)
        shared.plant(make_record(1, key=9))  # nobody wants it
        shared.plant(make_record(1))
        assert wait() == make_record(1) and tiers.get(make_record(key=9).key) is None

    def test_what_another_process_of_this_machine_was_faster_to_fetch_is_told(
        self, make_tiers: Callable[..., Tiers], make_record: Make
    ) -> None:
        """They have one local tier: what comes there through one of them is no news to it, but to whoever watches in the other."""
        shared, winner = FakeShared(tells=True), make_record(1)
        ours, miss = make_tiers(shared), make_tiers(shared)
        ours.put(winner)
        assert ours.get(winner.key) == winner and shared.until(lambda: shared.stored)
        then, wait = told()
        ours.watch(winner.key, then, every=1e6)
        assert shared.until(lambda: shared.told)
        for record in (winner.rolled_back(), make_record(2, revision=1)):
            open_local(ours.directory).put(record)
            shared.plant(record)
            heard = wait()
            assert ours.get(winner.key) == heard and winner.config in heard.quarantined
        of_nothing, wait = told()
        miss.watch(winner.key, of_nothing, every=0.02)  # it had asked before there was anything
        assert wait() == ours.get(winner.key)

    def test_the_most_impatient_watcher_counts(self, make_tiers: Callable[..., Tiers], make_record: Make) -> None:
        shared = FakeShared()
        tiers = make_tiers(shared)
        slow, quick = told(), told()
        tiers.watch(make_record().key, slow[0], every=1e6)
        stop = tiers.watch(make_record().key, quick[0], every=0.02)
        shared.plant(make_record(1))
        assert slow[1]() == quick[1]() == make_record(1)
        stop()
        (status,) = [tier for tier in tiers.status() if tier["tier"] == "shared"]
        assert status["watched"] == 1


FORK = """
import os, threading
from pathlib import Path
from helion_rt.database.tiers import open_tiers
from helion_rt.settings import Settings
folder, cache = sys.argv[1], sys.argv[2]
tiers = open_tiers(Settings(cache_dir=Path(cache), shared=(f"file://{folder}",)))
tiers.put(make_record(1))
tiers.ask(make_record().key).wait()
tiers.watch(make_record().key, lambda record: None, every=0.01)
child = os.fork()
if child == 0:
    assert not any(t.name == "helion-rt-exchange" for t in threading.enumerate())
    tiers.put(make_record(2, key=1))
    asked = tiers.ask(make_record(key=1).key)
    asked.wait()
    assert asked.settled and any(t.name == "helion-rt-exchange" for t in threading.enumerate())
    tiers.close()
    os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
tiers.put(make_record(3, key=2))
tiers.close()
print(*sorted({"jax", "torch", "redis", "fsspec"} & set(sys.modules)))
"""


def test_a_forked_process_has_a_thread_of_its_own(run_script: Callable[..., Any], make_record: Make, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    done = run_script(FORK, tmp_path / "shared", tmp_path / "cache")
    assert done.stdout.strip() == ""
    tiers = open_tiers(Settings(cache_dir=tmp_path / "other", shared=(f"file://{tmp_path / 'shared'}",), tiers=MODES))
    for n in range(3):
        tiers.ask(make_record(key=n).key).wait()
        assert tiers.get(make_record(key=n).key) == make_record(n + 1, key=n)
    tiers.close()


class TestOpening:
    def test_urls_that_mean_nothing_are_refused_before_anything_is_touched(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="begins with one of"):
            open_tiers(Settings(cache_dir=tmp_path, shared=("carrier-pigeon://loft",)))

    def test_the_operators_mode_goes_before_the_programs(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}"
        for most, asked, got in [
            ("write-through", "read-only", ["read-only"]), ("read-only", "write-through", ["read-only"]),
            ("write-through", "write-through", ["write-through"]), ("off", "write-through", []),
        ]:  # fmt: skip
            settings = Settings(cache_dir=tmp_path, tiers=replace(MODES, shared=TierMode(most)))
            tiers = open_tiers(settings, more=[(url, TierMode(asked))])
            assert [tier["mode"] for tier in tiers.status() if tier["tier"] == "shared"] == got
