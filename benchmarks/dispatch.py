"""What a warm call of a kernel costs on top of calling the jitted function itself, on JAX arrays, in microseconds.

Both compute the same: the function the kernel's slot serves, under ``jax.jit``. Calls take turns, thousands of them; only the call is
timed, then the result is waited for, so that neither side runs into the other's work. Tuning is off: nothing else is going on.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["HELION_RT_TUNE"] = "off"

from . import common

LIMIT_US = 15.0


def overhead(kernel: Any, jitted: Callable[..., object], arrays: tuple[Any, ...], calls: int) -> dict[str, float]:
    """Median microseconds of a call of each, and the median of their differences, call by call."""
    import jax

    names: dict[str, Callable[..., object]] = {"kernel": kernel, "jitted": jitted}
    for _ in range(100):
        for call in names.values():
            jax.block_until_ready(call(*arrays))
    seen: dict[str, list[float]] = {name: [] for name in names}
    clock = time.perf_counter_ns
    for number in range(calls):
        for name in ("kernel", "jitted") if number % 2 else ("jitted", "kernel"):
            call = names[name]
            start = clock()
            out = call(*arrays)
            seen[name].append((clock() - start) / 1e3)
            jax.block_until_ready(out)
    middle = {name: statistics.median(values) for name, values in seen.items()}
    return {**middle, "overhead": middle["kernel"] - middle["jitted"], "ratio": middle["kernel"] / middle["jitted"]}


def main(argv: list[str]) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    options = parser.parse_args(argv)
    with common.caches("cache") as (cache,):
        os.environ["HELION_RT_CACHE_DIR"] = str(cache)
        rows = list(_rows(options.calls))
    return common.report("A warm call over calling the jitted function itself", rows, options.json)


def _rows(calls: int) -> list[common.Row]:
    import jax

    from helion_rt import kernels

    x = jax.random.normal(jax.random.key(0), (64, 128))
    vector = x[0]
    rows = []
    for name, arrays in {"add": (x, x), "gelu": (x,), "layer_norm": (x, vector, vector)}.items():
        kernel = getattr(kernels, name)
        jax.block_until_ready(kernel(*arrays))
        jitted = jax.jit(kernel.bind(*arrays).serving.function)
        figures = overhead(kernel, jitted, arrays, calls)
        rows.append(common.Row(f"{name} 64 x 128", figures, "us", figures["overhead"], LIMIT_US, f"at most {LIMIT_US:.0f} us more"))
    return rows


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
