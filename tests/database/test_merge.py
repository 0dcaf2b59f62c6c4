"""The laws of merging: whoever has seen the same records keeps the same one, byte for byte, and what was taken back stays so."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import reduce
from pathlib import Path

import pytest
from database_strategies import config_values, words
from hypothesis import given, settings
from hypothesis import strategies as st

from helion_rt.database import Evidence, EvidenceKind, Key, LocalTier, Origin, Record, Status, StoreKind, better, encode_record
from helion_rt.database import tier as tier_module
from helion_rt.database.codec import MAX_FINDING_BYTES, MAX_RECORD_BYTES
from helion_rt.database.record import MAX_QUARANTINED, MAX_QUARANTINED_BYTES, MAX_REVISION, MINOR, order

Make = Callable[..., Record]
KEY = Key("ab" * 32, (), "default", "cpu")

# Few values of each, so that ties and near ties are the rule; and values that Python takes for equal and bytes do not.
configs = st.sampled_from([{}, {"b": 1}, {"b": True}, {"b": 1.0}, {"b": [8, 16]}, {"b": [16, 8]}, {"b": 0.0}, {"b": -0.0}])
configs |= st.dictionaries(words, config_values, max_size=2)
large = st.builds(lambda n: {"block_sizes": [n] * MAX_QUARANTINED_BYTES}, st.integers(0, 3))
times = st.sampled_from([None, 1e-300, 0.5, 1.0, 1.0000000000000002, 1e300])
spreads = st.sampled_from([0.0, -0.0, 0.1, 1e308])
extras = st.sampled_from([{}, {}, {"minor": MINOR + 1, "note": "n"}, {"minor": MINOR + 2, "evidence": {"joules": 1}, "flag": True}])
records = st.builds(
    Record,
    key=st.just(KEY),
    kernel=st.sampled_from(["k", "l"]),
    status=st.sampled_from(Status),
    config=configs,
    space_version=st.sampled_from([1, 2]),
    evidence=st.builds(Evidence, st.sampled_from(EvidenceKind), times, times, spreads, st.sampled_from([0, 8])),
    toolchain=st.sampled_from([{}, *({"jax": jax} for jax in ("0.9.12", "0.10.2", "0.10.10", "nightly")), {"jax": "0.10.2", "x": "1"}]),
    origin=st.sampled_from(Origin),
    machine=st.sampled_from(["", "aa"]),
    date=st.sampled_from(["2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"]),
    quarantined=st.lists(configs | large, max_size=3).map(tuple),
    revision=st.sampled_from([0, 1, MAX_REVISION]),
    extra=extras,
    retune=st.booleans(),
)


def merged(found: Iterable[Record]) -> bytes:
    return encode_record(reduce(better, found))


@settings(deadline=None)
@given(records, records, records)
def test_commutative_associative_idempotent(a: Record, b: Record, c: Record) -> None:
    assert merged([a, b]) == merged([b, a])
    assert encode_record(better(better(a, b), c)) == encode_record(better(a, better(b, c)))
    assert merged([a, a]) == encode_record(a)
    ab = better(a, b)
    assert merged([ab, a]) == merged([ab, b]) == merged([ab, ab]) == encode_record(ab)


@settings(deadline=None)
@given(records, records)
def test_the_order_is_total_and_merging_does_not_change_a_rank(a: Record, b: Record) -> None:
    alike = encode_record(replace(a, quarantined=())) == encode_record(replace(b, quarantined=()))
    assert (order(a) == order(b)) == alike
    assert order(better(a, b)) == max(order(a), order(b))
    assert order(a.joined(b.quarantined)) == order(a)


@settings(deadline=None, max_examples=40)
@given(st.lists(records, min_size=1, max_size=12), st.integers(0, 2**32))
def test_any_order_of_exchange_among_five_replicas_gives_the_same_bytes(found: list[Record], seed: int) -> None:
    dice = random.Random(seed)
    replicas: list[Record | None] = [None] * 5

    def take(i: int, record: Record | None) -> None:
        mine = replicas[i]
        replicas[i] = record if mine is None else mine if record is None else better(mine, record)

    arrivals = [(dice.randrange(5), record) for record in found for _ in range(dice.randrange(1, 3))]  # some twice
    dice.shuffle(arrivals)
    for i, record in arrivals:
        take(i, record)
        take(dice.randrange(5), replicas[dice.randrange(5)])
    for _ in range(2):  # along a ring of a random order, twice around: everybody hears of everything
        ring = dice.sample(range(5), 5)
        for i, j in zip(ring, [*ring[1:], ring[0]], strict=True):
            take(j, replicas[i])
    ring = dice.sample(range(5), 5)
    for i in ring:
        for j in ring:
            take(j, replicas[i])
    assert {encode_record(replica) for replica in replicas if replica is not None} == {merged(found)} and None not in replicas


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32))
def test_a_winner_that_was_taken_back_never_serves_where_that_is_known(seed: int) -> None:
    """Servers tune, take back and gossip at random. After everybody has heard of everything, nothing that anybody took back serves."""
    dice = random.Random(seed)
    replicas: list[Record | None] = [None] * 4
    taken_back: list[dict[str, object]] = []
    for _ in range(40):
        i = dice.randrange(4)
        mine, what = replicas[i], dice.randrange(3)
        if what == 0:
            evidence = Evidence(EvidenceKind.MEASURED, ms=dice.choice([0.5, 1.0, 2.0]), default_ms=3.0)
            revision = 0 if mine is None else mine.next_revision if mine.is_void else mine.revision
            known = {"quarantined": mine.quarantined, "revision": revision} if mine is not None else {}
            new = Record(KEY, "k", Status.WINNER, {"b": dice.randrange(6)}, 1, evidence, {}, date="2026-01-01T00:00:00Z", **known)
            if not new.is_void:
                replicas[i] = new if mine is None else better(mine, new)
                if mine is not None and mine.is_void:
                    assert replicas[i] == new, "what is found in the place of a void winner outranks it"
        elif what == 1 and mine is not None and mine.status is Status.WINNER and not mine.is_void:
            taken_back.append(mine.config)
            replicas[i] = better(mine, mine.rolled_back())
            assert replicas[i].status is Status.ALL_FAILED  # type: ignore[union-attr]
        else:
            other = replicas[dice.randrange(4)]
            replicas[i] = mine if other is None else other if mine is None else better(mine, other)
    heard = [replica for replica in replicas if replica is not None]
    if heard:
        end = reduce(better, heard)
        assert all(config in end.quarantined for config in taken_back)
        assert end.status is not Status.WINNER or end.is_void or end.config not in taken_back


def test_a_roll_back_needs_no_force(make_record: Make) -> None:
    scheduled = Evidence(EvidenceKind.SCHEDULED, ms=1e-9)
    for changes in ({}, {"revision": 3}, {"toolchain": {"jax": "9.9"}}, {"space_version": 7}, {"evidence": scheduled}):
        winner = make_record(5, **changes)
        assert better(winner, winner.rolled_back()).status is Status.ALL_FAILED


def test_a_record_of_the_last_revision_can_be_taken_back(make_record: Make) -> None:
    last = make_record(5, revision=MAX_REVISION)
    assert better(last, last.rolled_back()).is_void and last.next_revision == MAX_REVISION


class TestBounds:
    def test_joining_never_runs_out_of_room(self, make_record: Make) -> None:
        fat = {"x": "y" * 500, "z": ["w" * 200]}
        big = make_record(config={f"c{i}": ["v" * 500] * 10 for i in range(12)})
        assert len(encode_record(big)) > MAX_FINDING_BYTES - 5000
        others = [make_record(n, quarantined=tuple({**fat, "n": m} for m in range(n, n + 40))) for n in range(0, 200, 40)]
        whole = reduce(better, [*others, big])
        assert len(whole.quarantined) == MAX_QUARANTINED and len(encode_record(whole)) <= MAX_RECORD_BYTES
        assert merged([big, *others]) == merged([*others[::-1], big]) == encode_record(whole)

    def test_a_large_config_is_void_by_its_digest(self, make_record: Make) -> None:
        config = {"block_sizes": list(range(1000))}
        winner = make_record(config=config)
        gone = winner.rolled_back()
        assert gone.quarantined[0].keys() == {"sha256"} and len(encode_record(gone)) < 1500
        assert better(gone, make_record(config=config, revision=5)).is_void
        assert not better(gone, make_record(config={"block_sizes": list(range(999))}, revision=5)).is_void

    def test_where_more_was_taken_back_than_can_be_kept_no_winner_is_believed(self, make_record: Make) -> None:
        full = make_record(quarantined=tuple({"n": n} for n in range(MAX_QUARANTINED)))
        assert full.is_void and not make_record(quarantined=full.quarantined[1:]).is_void


class TestTier:
    @pytest.fixture(params=[StoreKind.SQLITE, StoreKind.FILES], ids=["sqlite", "files"])
    def store(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> StoreKind:
        monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: request.param is StoreKind.FILES)
        return request.param

    def test_what_is_stored_is_the_merge_of_all_that_was_put(self, store: StoreKind, tmp_path: Path, make_record: Make) -> None:
        dice = random.Random(7)
        for round_ in range(4):
            tier, put = LocalTier(tmp_path / str(round_)), []
            for _ in range(12):
                bad = tuple({"block_sizes": [n, 2 * n], "loop_strategies": ["grid"]} for n in dice.sample(range(6), dice.randrange(3)))
                put.append(make_record(dice.randrange(6), quarantined=bad, revision=dice.randrange(3)))
                assert tier.put(put[-1])
            found = LocalTier(tier.directory).get(make_record().key)
            assert found is not None and encode_record(found) == merged(put)
            assert len(list(tier.store.names())) == 1 and len(tier.store.read(f"r-{found.key.digest}", 1 << 20)) == 1

    def test_two_writers_of_files_lose_nothing(self, tmp_path: Path, make_record: Make) -> None:
        """Each publishes while the other has published and not yet looked: the worst moment there is."""
        from helion_rt.database.file_store import FileStore

        one, two = make_record(1, quarantined=({"n": 1},)), make_record(2, quarantined=({"n": 2},))
        tier, name = LocalTier(tmp_path), f"r-{one.key.digest}"
        store = FileStore(tmp_path / "v1" / "files")
        intruded = []

        def choose(old: bytes, new: bytes) -> bytes:
            if not intruded:
                intruded.append(True)
                FileStore(tmp_path / "v1" / "files").merge(name, encode_record(two), choose)
            return tier._choose(tier_module._Choice.BETTER, old, new)

        store.merge(name, encode_record(make_record(0)), choose)
        store.merge(name, encode_record(one), choose)
        assert intruded and store.read(name, 1 << 20) == [merged([make_record(0), one, two])]
