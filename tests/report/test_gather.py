"""From what a search leaves behind to what a report shows."""

from __future__ import annotations

from dataclasses import replace

import jax
import pytest

from helion_rt import kernels, targets
from helion_rt.config import Config
from helion_rt.database import Evidence, EvidenceKind, Record, Status
from helion_rt.report import gather
from helion_rt.runtime import prepare
from helion_rt.runtime.ahead import Filled
from helion_rt.tuning.evidence import Event, Trial
from helion_rt.tuning.search import Outcome
from helion_rt.tuning.space import SPACE_VERSION, Space

WINNER = Config(block_sizes=[256, 256, 256], loop_strategies=["grid"])
OTHER = Config(block_sizes=[256, 256, 256], loop_strategies=["emit_pipeline"])


@pytest.fixture(scope="module")
def filled() -> Filled:
    x = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    found, key, _, _ = prepare.find(kernels.matmul, kernels.matmul.bound(x, x), targets.get("v5e"))
    evidence = Evidence(EvidenceKind.SCHEDULED, 0.5, 1.0, candidates_tried=2, seconds=3.0)
    record = Record(key, "matmul", Status.WINNER, WINNER.to_dict(), SPACE_VERSION, evidence, {})
    trials = [(WINNER, Trial(None, 5e-4, EvidenceKind.SCHEDULED)), (OTHER, Trial("too many registers", kind=EvidenceKind.SCHEDULED))]
    log = [Event(1.0, config, 1e-3, trial, "", WINNER, 5e-4) for config, trial in trials]
    outcome = Outcome(WINNER, WINNER, 0.5, 1.0, tried=2, seconds=3.0, kind=EvidenceKind.SCHEDULED, log=log)
    return Filled(key, found.program, Space(found.program, targets.get("v5e")), record, outcome)


def test_a_search_with_a_winner(filled: Filled) -> None:
    search = gather.search_of(filled, "matmul", "4096x4096 bfloat16")
    assert (search.winner, search.winner_seconds, search.default_seconds, search.gain) == (WINNER, 5e-4, 1e-3, 2.0)
    assert search.cost is not None and search.cost.dot_flops == 2 * 4096**3
    assert search.rates is not None and search.rates.dtype == "bfloat16"
    assert search.rates.matrix == targets.get("v5e").info.bf16_ops_per_second
    assert search.remark == "" and len(search.log) == 2


def test_other_forms_are_told_with_what_became_of_them(filled: Filled) -> None:
    told = gather.search_of(filled, "matmul", "").alternatives
    assert told["loop_strategies=['emit_pipeline']"] == "too many registers"
    assert told["loop_strategies=['fori']"] == "not tried with the rest as it is"


def test_forms_that_do_not_fit_say_why(filled: Filled) -> None:
    huge = Config(block_sizes=[4096, 4096, 2048], loop_strategies=["grid"])
    record = replace(filled.record, config=huge.to_dict()) if filled.record is not None else None
    # Blocks of 4096 by 4096 in float32 do not fit, whatever the form.
    reasons = gather.alternatives(replace(filled, record=record), huge)
    assert reasons and all(reason.startswith("not legal: ") for reason in reasons.values())


def test_what_the_database_had(filled: Filled) -> None:
    search = gather.search_of(replace(filled, outcome=None), "matmul", "")
    assert search.log == () and "The database had the answer" in search.remark and "2 candidates in 3 s" in search.remark


def test_what_could_not_be_filled(filled: Filled) -> None:
    search = gather.search_of(replace(filled, record=None, problem="another process is tuning this key"), "matmul", "")
    assert search.winner is None and search.winner_seconds is None and search.remark == "Not stored: another process is tuning this key."


def test_the_cpu_has_no_published_rates(filled: Filled) -> None:
    assert gather.rates(targets.get("cpu"), filled.program) is None
