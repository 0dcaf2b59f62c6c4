"""What an estimate is: plain data, the same for our kernels and for any other JAX function."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from helion_rt.database import EvidenceKind


class Bottleneck(enum.Enum):
    """What is full, or that nothing is."""

    MXU = "MXU"  # the matrix units
    XLU = "XLU"  # the cross-lane unit: transposes, reductions along lanes
    VALU = "VALU"  # vector arithmetic
    EUP = "EUP"  # exponentials, reciprocals, square roots
    LOAD = "VLOAD"  # vector loads, fills of spilled registers included
    STORE = "VSTORE"  # vector stores, spills included
    SCALAR = "SALU"  # scalar arithmetic
    HBM = "HBM"  # bandwidth of the memory
    LATENCY = "latency"  # waiting: short steps, chains of dependent operations


@dataclass(frozen=True, slots=True)
class KernelEstimate:
    """One kernel of a module (a Pallas kernel, or a fusion of XLA). ``calls`` in the module; the rest is of one call.

    ``cycles`` of a core; ``stalled`` of them waiting for copies; ``hbm_bytes`` copied; ``steps``: turns of its longest loop.
    """

    name: str
    calls: int
    cycles: float
    stalled: float
    steps: int
    mxu_cycles: float
    hbm_bytes: float
    units: Mapping[str, float]
    spills: int
    vmem_bytes: int


@dataclass(frozen=True, slots=True)
class Estimate:
    """The predicted time of one call of a function on one device of ``target``: an estimate, never a measurement.

    ``kind``: ``scheduled`` where the compiler's own schedule was weighed, ``modelled`` where only flops and bytes are known (``notes``
    say why). ``units``: share of the time in which each unit is busy, 0 to 1. ``spills``: register fills and spills issued.
    ``vmem_bytes``: the most that one kernel holds. ``hbm_floor_ms``, ``mxu_floor_ms``: reading every argument and writing every result
    once, and the matrix products at the peak rate.
    """

    ms: float
    cycles: float
    kind: EvidenceKind
    target: str
    bottleneck: Bottleneck
    units: Mapping[str, float] = field(default_factory=dict)
    spills: int = 0
    vmem_bytes: int = 0
    hbm_floor_ms: float = 0.0
    mxu_floor_ms: float = 0.0
    kernels: tuple[KernelEstimate, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        return self.ms / 1e3

    def facts(self) -> dict[str, float | int | str]:
        """The headline numbers as plain data, for logs and records of trials."""
        out: dict[str, float | int | str] = {
            "bound": self.bottleneck.value, "spills": self.spills, "vmem_bytes": self.vmem_bytes, "cycles": round(self.cycles),
            "hbm_floor_ms": self.hbm_floor_ms, "mxu_floor_ms": self.mxu_floor_ms,
        }  # fmt: skip
        out |= {f"unit_{name}": round(share, 4) for name, share in self.units.items()}
        if self.notes:
            out["notes"] = "; ".join(self.notes)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Plain data, JSON's types only; ``from_dict`` takes it back."""
        kernels = [{name: _plain(getattr(k, name)) for name in KernelEstimate.__slots__} for k in self.kernels]
        plain = {name: _plain(getattr(self, name)) for name in Estimate.__slots__ if name != "kernels"}
        return {**plain, "kernels": kernels}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Estimate:
        """Raises ``KeyError``, ``TypeError`` or ``ValueError`` for data of another form."""
        fields = dict(data)
        fields["kind"] = EvidenceKind(fields["kind"])
        fields["bottleneck"] = Bottleneck(fields["bottleneck"])
        fields["kernels"] = tuple(KernelEstimate(**kernel) for kernel in fields["kernels"])
        fields["notes"] = tuple(fields["notes"])
        return cls(**fields)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
