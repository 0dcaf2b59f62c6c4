"""The search against simulated machines whose true costs are known: noise, spikes, ties, several kinds of evidence. No real clock."""

import itertools
import math
import random

import pytest

from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.tuning import propose
from helion_rt.tuning import search as search_module
from helion_rt.tuning.evidence import Trial
from helion_rt.tuning.measure import Pairs
from helion_rt.tuning.search import Budget, search

ROWS, COLUMNS, STRATEGIES = (256, 128, 64, 32, 16), (512, 256, 128, 64), ("unroll", "fori")


def point(rows, columns, strategy):
    return Config(block_sizes=[rows, columns], loop_strategies=[strategy])


POINTS = [point(*choice) for choice in itertools.product(ROWS, COLUMNS, STRATEGIES)]
DEFAULT = POINTS[0]


class Plane:
    """Two blocks and a strategy: 40 points, all legal; the first is the default and the simplest."""

    program = target = None
    only = ()

    def default(self):
        return DEFAULT

    def some(self, limit):
        return POINTS

    def canonical(self, config):
        return config

    def smaller(self, config):
        return None

    def simplicity(self, config):
        return POINTS.index(config)

    def neighbours(self, config):
        for other in POINTS:
            differ = [
                a != b
                for a, b in zip((*config.block_sizes, *config.loop_strategies), (*other.block_sizes, *other.loop_strategies), strict=True)
            ]
            if sum(differ) == 1:
                yield other


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


class Machine:
    """Times are ``true[config]`` seconds with relative ``noise``, and one in ten is a spike of two to five times that."""

    kind = EvidenceKind.MEASURED

    def __init__(self, true, seed=0, noise=0.05, spikes=0.1, pairs=40):
        self.true, self.noise, self.spikes, self.count = true, noise, spikes, pairs
        self.random, self.clock, self.tried = random.Random(seed), Clock(), []

    def once(self, config):
        seconds = self.true[config] * math.exp(self.random.gauss(0, self.noise))
        return seconds * self.random.uniform(2, 5) if self.random.random() < self.spikes else seconds

    def trial(self, config):
        self.tried.append(config)
        self.clock.now += 0.2
        return Trial(None, min(self.once(config) for _ in range(3)))

    def pairs(self, a, b, budget):
        self.clock.now += 0.1
        return Pairs(*(tuple(self.once(c) for _ in range(self.count)) for c in (a, b)))


class Compiler:
    """Says the same of a config each time; of those in ``modelled`` it could only model."""

    kind = EvidenceKind.SCHEDULED

    def __init__(self, true, refused=(), modelled=()):
        self.true, self.refused, self.modelled, self.clock, self.tried = true, refused, modelled, Clock(), []

    def trial(self, config):
        self.tried.append(config)
        self.clock.now += 2.0
        if config in self.refused:
            return Trial("out of VMEM", kind=self.kind)
        return Trial(None, self.true[config], EvidenceKind.MODELLED if config in self.modelled else self.kind)

    def pairs(self, a, b, budget):
        raise AssertionError("nothing is measured")


@pytest.fixture(autouse=True)
def a_model_that_likes_large_blocks(monkeypatch):
    monkeypatch.setattr(propose.model, "seconds", lambda program, config, target: 1 / math.prod(config.block_sizes))
    monkeypatch.setattr(propose.model, "effort", lambda program, config, target: 1.0)
    monkeypatch.setattr(search_module.heuristics, "seeds", lambda space: ())


def tune(*machines, budget=600.0, **options):
    clock = machines[0].clock
    for machine in machines:
        machine.clock = clock
    return search(Plane(), machines if len(machines) > 1 else machines[0], budget, clock=clock, sleep=clock.sleep, **options)


def bowl(seed):
    """True costs around a best point somewhere, with ruggedness; a third of the points are within 3 % above the default."""
    draw = random.Random(seed)
    at = (draw.uniform(4, 8), draw.uniform(6, 9))
    depth = draw.uniform(0.0, 0.5)
    true = {}
    for config in POINTS:
        away = sum((math.log2(size) - best) ** 2 for size, best in zip(config.block_sizes, at, strict=True))
        true[config] = (1 - depth * math.exp(-away / 4)) * draw.uniform(1.0, 1.1)
    for config in draw.sample(POINTS[1:], 13):
        true[config] = true[DEFAULT] * draw.uniform(1.0001, 1.03)
    return true


def test_candidates_within_the_noise_of_the_default_never_replace_it():
    for seed in range(100):
        draw = random.Random(seed)
        out = tune(Machine({config: draw.uniform(0.99, 1.01) for config in POINTS}, seed))
        assert out.winner is None and out.incumbent is not None, seed


def never_worse(seeds):
    gains = []
    for seed in seeds:
        true = bowl(seed)
        winner = tune(Machine(true, seed, pairs=7 + seed % 40)).winner or DEFAULT
        assert true[winner] <= true[DEFAULT], seed
        gains.append(true[winner] / min(true.values()))
    return gains


def test_the_winner_is_never_worse_than_the_default():
    gains = never_worse(range(60))
    assert sorted(gains)[len(gains) // 2] < 1.06  # and it is worth having


@pytest.mark.slow
def test_the_winner_is_never_worse_than_the_default_of_a_thousand_seeds():
    never_worse(range(1000))


def test_of_near_ties_the_simplest_wins_each_time():
    alike = [point(64, 128, "fori"), point(32, 256, "unroll"), point(128, 64, "unroll")]
    true = {config: 0.8 if config in alike else 1.0 for config in POINTS}
    winners = {tune(Machine(true, seed, noise=0.01), seeds=alike).winner for seed in range(20)}
    assert winners == {min(alike, key=POINTS.index)}


def test_the_same_answers_lead_to_the_same_search():
    first, second = (tune(Machine(bowl(3), seed=5)) for _ in range(2))
    assert first.log == second.log and first.winner == second.winner


def test_a_search_stops_when_little_is_to_be_expected_or_its_trials_are_used_up():
    flat = Machine(dict.fromkeys(POINTS, 1.0), noise=0.001, spikes=0)
    assert tune(flat).tried < len(POINTS)
    assert tune(Machine(bowl(1)), budget=Budget(600, trials=3)).tried == 3
    assert tune(Machine(bowl(1)), budget=Budget(600, compile_seconds=1.5)).tried < 10


def test_events_tell_the_whole_story():
    seen = []
    out = tune(Machine(bowl(2)), on_event=seen.append)
    assert seen == out.log and len(seen) == out.tried + 1
    assert seen[0].config == DEFAULT and seen[0].best == DEFAULT
    assert all(a.at <= b.at for a, b in itertools.pairwise(seen))
    assert any("faster" in event.verdict or "slower" in event.verdict for event in seen[1:])


def test_seeds_come_first_and_once():
    seeds = [point(16, 64, "fori"), point(32, 64, "unroll"), point(16, 64, "fori")]
    machine = Machine(bowl(1))
    tune(machine, seeds=seeds)
    assert machine.tried[:3] == [DEFAULT, *seeds[:2]] and len(set(machine.tried)) == len(machine.tried)


def test_a_schedule_needs_no_pairs_and_its_near_ties_go_to_the_simplest():
    true = dict.fromkeys(POINTS, 1.0) | {point(64, 128, "fori"): 0.7, point(64, 128, "unroll"): 0.705}
    out = tune(Compiler(true), seeds=[point(64, 128, "fori"), point(64, 128, "unroll")])
    assert out.winner == point(64, 128, "unroll") and out.kind is EvidenceKind.SCHEDULED
    assert out.ms == pytest.approx(705) and out.default_ms == pytest.approx(1000)
    assert tune(Compiler(dict.fromkeys(POINTS, 1.0) | {POINTS[7]: 0.995}), seeds=[POINTS[7]]).winner is None


def test_a_time_that_could_only_be_modelled_is_not_held_against_a_scheduled_one():
    best, wrong = point(256, 256, "unroll"), point(16, 64, "fori")
    true = dict.fromkeys(POINTS, 1.0) | {best: 0.6, wrong: 1e-6}
    out = tune(Compiler(true, modelled=[wrong]), seeds=[best, wrong])
    assert out.winner == best and out.kind is EvidenceKind.SCHEDULED


def test_what_was_measured_is_what_the_compiler_liked():
    true = bowl(11)
    compiler, machine = Compiler(true, refused=[POINTS[3]]), Machine(true, noise=0.01)
    out = tune(compiler, machine, seeds=[POINTS[3]])
    liked = sorted(set(compiler.tried) - {DEFAULT, POINTS[3]}, key=true.get)
    assert machine.tried[0] == DEFAULT and set(machine.tried[1:]) == set(liked[: search_module.FINALISTS])
    assert out.kind is EvidenceKind.MEASURED and (POINTS[3], "out of VMEM") in out.faults
    assert true[out.winner or DEFAULT] <= 1.02 * min(true[c] for c in compiler.tried if c != POINTS[3])
