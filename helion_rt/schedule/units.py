"""The rates of a TPU core that an estimate needs, derived from JAX's ``TpuInfo``; two are not in there, and say where they are from."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from helion_rt.targets import Target

# From starting a copy to its flag, beyond the time that its bytes take. The JAX documentation's matmul in blocks of 128 takes 0.35 us
# a grid step on a v5e, in which there are 0.08 us of bytes and less of flops; its pipeline has the copies of two steps in flight.
COPY_LATENCY_SECONDS = 0.55e-6

# Bundles after a taken branch that are executed all the same, by TpuInfo.generation (read from the texts: a loop's last branch
# stands that many bundles before its end).
BRANCH_SHADOW = {4: 1, 5: 4, 6: 4, 7: 6}

GRANULE_BYTES = 32  # a DMA's size is given in these


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one core. ``clock`` in Hz; ``hbm`` in bytes a cycle; ``latency`` in cycles; ``mxu_flops`` a cycle, all MXUs together, in bf16."""

    clock: float
    hbm: float
    latency: float
    cores: int  # that one device joins: a kernel's time is that of one of them
    mxus: int
    mxu_flops: float
    columns: int
    shadow: int

    def matmul_cycles(self, name: str) -> float:
        """How long one ``vmatmul`` keeps its MXU: a vector register of rows times a square of weights, at the peak rate.

        A register holds 8 rows of 32 bits, 16 of 16 and 32 of 8 bits; the hardware takes a row in the same time whatever its width
        on the generations before native 8-bit types, half as long with them.
        """
        rows = 8 if name.startswith("f32") or ".f32" in name else 16
        return rows * self.columns * self.columns * 2 / (self.mxu_flops / self.mxus)


@functools.cache
def rates(target: Target) -> Rates:
    """The rates of one core of ``target``. Raises ``TargetError``."""
    info = target.info
    # A 128-wide MXU takes one row a cycle, a 256-wide one two: with the peak rate that gives the clock, and it is the published one
    # (1.05, 1.5, 1.75, 1.75 and 2.2 GHz for v4, v5e, v5p, v6e, 7x).
    rows = 2 if info.mxu_column_size >= 256 else 1
    flops = info.num_mxus * info.mxu_column_size**2 * 2 * rows
    clock = info.bf16_ops_per_second / flops
    return Rates(
        clock=clock,
        hbm=info.mem_bw_bytes_per_second / clock,
        latency=COPY_LATENCY_SECONDS * clock,
        cores=info.num_cores,
        mxus=info.num_mxus,
        mxu_flops=flops,
        columns=info.mxu_column_size,
        shadow=BRANCH_SHADOW[info.generation],
    )
