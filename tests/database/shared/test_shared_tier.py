"""What every shared tier does, on real engines."""

from __future__ import annotations

import pytest
from database_support import make_record

from helion_rt.database.shared import SharedTier, open_shared
from helion_rt.database.signing import Trust


@pytest.fixture
def tier(shared_url: str) -> SharedTier:
    return open_shared(shared_url, trust=Trust(), timeout=20.0)


def test_records_are_merged_and_found(tier: SharedTier, shared_url: str) -> None:
    other = open_shared(shared_url, trust=Trust(), timeout=20.0)
    first, second = make_record(1), make_record(2)
    assert tier.get(first.key) is None
    assert tier.put(second) == second
    assert other.put(first) == second, "what is stored after merging comes back"
    assert tier.get(first.key) == other.get(first.key) == second
    assert tier.put(make_record(7, key=1)) == make_record(7, key=1)
    assert {record.kernel: record for record in other.records()} == {"kernel_0": second, "kernel_1": make_record(7, key=1)}
    assert set(tier.digests()) == {first.key.digest, make_record(key=1).key.digest}
    assert (tier.stats().hits, tier.stats().misses, tier.stats().writes, tier.stats().failures) == (1, 1, 2, 0)


def test_quarantine_is_joined(tier: SharedTier) -> None:
    bad_one, bad_two = make_record(1), make_record(2)
    tier.put(bad_one.rolled_back())
    stored = tier.put(bad_two.rolled_back())
    assert list(stored.quarantined) == [bad_one.config, bad_two.config]
    assert tier.get(bad_one.key) == stored


def test_forget(tier: SharedTier) -> None:
    digest = make_record().key.digest
    assert not tier.forget(digest)
    tier.put(make_record(1))
    assert tier.forget(digest)
    assert tier.get(make_record().key) is None and list(tier.digests()) == []
    with pytest.raises(ValueError, match="64 hex digits"):
        tier.forget("../../etc")


def test_leases(tier: SharedTier) -> None:
    digest, other = make_record().key.digest, make_record(key=1).key.digest
    assert not tier.renew_lease(digest, "a", 60)
    assert tier.take_lease(digest, "a", 60)
    assert not tier.take_lease(digest, "b", 60)
    assert tier.take_lease(digest, "a", 60), "its holder may ask again"
    assert tier.take_lease(other, "b", 60)
    assert not tier.renew_lease(digest, "b", 60)
    assert tier.renew_lease(digest, "a", 60)
    tier.release_lease(digest, "b")
    assert tier.renew_lease(digest, "a", 60)
    tier.release_lease(digest, "a")
    assert not tier.renew_lease(digest, "a", 60)
    assert tier.take_lease(digest, "b", 60)
    assert list(tier.digests()) == [], "leases are no records"
