"""Made-up searches."""

from __future__ import annotations

from helion_rt import report
from helion_rt.config import Config
from helion_rt.database import EvidenceKind
from helion_rt.program.cost import Cost
from helion_rt.tuning.evidence import Event, Trial

DEFAULT = Config(block_sizes=[128, 128, 128], loop_strategies=["grid"])
WINNER = Config(block_sizes=[512, 1024, 512], loop_strategies=["grid"])
RIVAL = Config(block_sizes=[512, 512, 512], loop_strategies=["emit_pipeline"])
TOO_LARGE = Config(block_sizes=[4096, 4096, 512], loop_strategies=["unroll"])


def facts(mxu: float, spills: int = 0) -> dict[str, float | int | str]:
    return {"bottleneck": "MXU", "unit:MXU": mxu, "unit:XLU": 0.125, "spills": spills, "vmem_bytes": 3 << 20, "hbm_floor_ms": 0.25}


def events(kind: EvidenceKind = EvidenceKind.SCHEDULED) -> tuple[Event, ...]:
    """Four candidates: the default, one that fails, the winner, one that comes near."""
    default, winner = Trial(None, 3e-3, kind, facts(0.3, 7)), Trial(None, 1e-3, kind, facts(0.9))
    rival = Trial(None, 1.1e-3, kind, facts(0.8))
    fault = Trial("CompileError: 48.5 MiB of VMEM, the limit is 16 MiB", kind=kind)
    return (
        Event(1.0, DEFAULT, 2.5e-3, default, "the default", DEFAULT, 3e-3),
        Event(2.0, TOO_LARGE, 0.5e-3, fault, "does not compile", DEFAULT, 3e-3),
        Event(4.0, WINNER, 0.8e-3, winner, "new best", WINNER, 1e-3),
        Event(5.0, RIVAL, 0.9e-3, rival, "10 % slower", WINNER, 1e-3),
    )


def search(kernel: str = "matmul", arguments: str = "4096x4096 bfloat16", **changes: object) -> report.Search:
    told: dict[str, object] = {
        "target": "tpu7x", "kind": EvidenceKind.SCHEDULED, "default": DEFAULT, "winner": WINNER, "default_seconds": 3e-3,
        "winner_seconds": 1e-3, "log": events(), "spent": 6.0, "space": 1234, "cost": Cost(10**9, 9 * 10**8, 10**6),
        "rates": report.Rates(1e12, 1e12, "bfloat16"), "alternatives": {"loop_strategies=['unroll']": "not legal: 80 MiB of VMEM"},
    }  # fmt: skip
    return report.Search(kernel, arguments, **{**told, **changes})  # type: ignore[arg-type]


def crossing(tuned_for: str, runs_on: str, trial: Trial) -> report.Crossing:
    return report.Crossing("matmul", "4096x4096 bfloat16", tuned_for, runs_on, WINNER, trial)
