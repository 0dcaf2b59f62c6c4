"""The copies in flight."""

from __future__ import annotations

from helion_rt.schedule.copies import Copies


def test_copies_queue_for_the_memory_and_their_latencies_overlap() -> None:
    copies = Copies(rate=2.0, latency=100.0)
    copies.start(0.0, 1, 20.0, hbm=True)
    copies.start(0.0, 2, 20.0, hbm=True)
    assert copies.wait(0.0, 1) == 110.0
    assert copies.wait(110.0, 2) == 120.0
    assert copies.stalled == 120.0 and copies.moved == 40.0 and copies.busy == 20.0


def test_a_copy_that_has_landed_costs_nothing() -> None:
    copies = Copies(rate=2.0, latency=100.0)
    copies.start(0.0, 1, 20.0, hbm=True)
    assert copies.wait(500.0, 1) == 500.0
    assert copies.stalled == 0.0


def test_flags_that_nobody_raises_and_copies_that_stay_on_the_chip() -> None:
    copies = Copies(rate=2.0, latency=100.0)
    assert copies.wait(5.0, 7) == 5.0
    copies.start(5.0, 7, 1e6, hbm=False)
    assert copies.wait(6.0, 7) == 6.0 and copies.moved == 0.0


def test_the_end_waits_for_everything() -> None:
    copies = Copies(rate=1.0, latency=10.0)
    copies.start(0.0, 1, 5.0, hbm=True)
    copies.start(0.0, 2, 5.0, hbm=True)
    assert copies.drain(1.0) == 20.0
    assert copies.drain(30.0) == 30.0
