"""Records to test with. Imports neither pytest nor anything heavy: scripts that are killed import it as well."""

from __future__ import annotations

from typing import Any

from helion_rt.database import Evidence, EvidenceKind, Key, Record, Status


def make_record(n: int = 0, *, key: int = 0, **changes: Any) -> Record:
    """Record number ``n`` of key number ``key``; a greater ``n`` is a better record."""
    fields: dict[str, Any] = {
        "key": Key(f"{key:064x}", (("tensor", (128, key), "float32"), None, True), "default", "cpu-test"),
        "kernel": f"kernel_{key}",
        "status": Status.WINNER,
        "config": {"block_sizes": [n, 2 * n], "loop_strategies": ["grid"]},
        "space_version": 1,
        "evidence": Evidence(EvidenceKind.MEASURED, ms=1.0 / (1 + n), default_ms=1.0, pairs=8),
        "toolchain": {"jax": "0.10.2"},
        "date": "2026-11-29T12:00:00Z",
    }
    return Record(**{**fields, **changes})
