"""A lease is renewed while it is held, and says when it may be another's: with a made-up tier, so nothing depends on the machine's pace."""

from __future__ import annotations

import threading

import pytest

from helion_rt.database.lease import Lease
from helion_rt.database.shared import SharedError

DIGEST = "ab" * 32
GENEROUS_S = 60.0


class Tier:
    """Leases that answer as they are told, and tell who asked."""

    def __init__(self) -> None:
        self.free, self.renews = True, True
        self.reachable = True
        self.owners: set[str] = set()
        self.released: list[str] = []
        self.renewals = threading.Semaphore(0)

    def take_lease(self, digest: str, owner: str, seconds: float) -> bool:
        assert digest == DIGEST
        self.owners.add(owner)
        return self.free

    def renew_lease(self, digest: str, owner: str, seconds: float) -> bool:
        assert owner in self.owners
        self.renewals.release()
        if not self.reachable:
            raise SharedError("gone")
        return self.renews

    def release_lease(self, digest: str, owner: str) -> None:
        if not self.reachable:
            raise SharedError("gone")
        self.released.append(owner)


def until_lost(lease: Lease) -> bool:
    pause = threading.Event()
    return any(lease.lost or pause.wait(0.01) for _ in range(int(GENEROUS_S / 0.01)))


def test_it_is_renewed_while_it_is_held_and_given_back() -> None:
    tier = Tier()
    lease = Lease(tier, DIGEST, 1.5)
    assert not lease.held and not lease.lost
    assert lease.take() and lease.held
    with lease:
        for _ in range(3):
            assert tier.renewals.acquire(timeout=GENEROUS_S)
    assert tier.released == list(tier.owners)
    assert not lease.held and not lease.lost
    lease.release()
    assert len(tier.released) == 1


def test_another_has_it() -> None:
    tier = Tier()
    tier.free = False
    lease = Lease(tier, DIGEST)
    assert not lease.take() and not lease.held and not lease.lost
    lease.release()
    assert tier.released == []


def test_it_was_taken_over() -> None:
    tier = Tier()
    lease = Lease(tier, DIGEST, 0.3)
    tier.renews = False
    assert lease.take()
    assert until_lost(lease) and not lease.held
    lease.release()
    assert tier.released == [], "it is another's"


def test_it_cannot_be_renewed_in_time() -> None:
    tier = Tier()
    lease = Lease(tier, DIGEST, 0.3)
    assert lease.take()
    tier.reachable = False
    assert until_lost(lease)
    lease.release()


def test_a_short_interruption_is_survived() -> None:
    tier = Tier()
    lease = Lease(tier, DIGEST, 12.0)
    assert lease.take()
    tier.reachable = False
    assert tier.renewals.acquire(timeout=GENEROUS_S)
    tier.reachable = True
    assert tier.renewals.acquire(timeout=GENEROUS_S)
    assert lease.held
    lease.release()
    assert len(tier.released) == 1


def test_the_tier_is_gone_when_it_is_given_back() -> None:
    tier = Tier()
    with Lease(tier, DIGEST) as lease:
        assert lease.take()
        tier.reachable = False


def test_two_of_one_process_are_two() -> None:
    tier = Tier()
    first, second = Lease(tier, DIGEST), Lease(tier, DIGEST)
    assert first.take() and second.take() and len(tier.owners) == 2
    first.release()
    second.release()


def test_no_answer_is_no_lease() -> None:
    class Gone(Tier):
        def take_lease(self, digest: str, owner: str, seconds: float) -> bool:
            raise SharedError("gone")

    lease = Lease(Gone(), DIGEST)
    with pytest.raises(SharedError):
        lease.take()
    assert not lease.held and not lease.lost
