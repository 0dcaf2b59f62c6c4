"""A small server for the process tests: ``python server_program.py MODE [CALLS]`` prints JSON. Not a test itself."""

import json
import sys
import threading

import numpy as np
import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


def serve(calls: int) -> bool:
    """Call the kernel; True if every result was right."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.standard_normal((96, 128), dtype=np.float32))
    y = torch.from_numpy(rng.standard_normal((128, 64), dtype=np.float32))
    expected = x.double() @ y.double()
    return all(bool(torch.allclose(matmul(x, y).double(), expected, rtol=1e-4, atol=1e-4)) for _ in range(calls))


def main() -> int:
    mode, calls = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    right = serve(calls)
    if mode == "wait":
        helion.wait_for_tuning(240)
        right = right and serve(calls)
    workers = [t.name for t in threading.enumerate() if t.name.startswith("helion-rt-worker")]
    report = {"right": right, "status": helion.status(), "counters": helion.process_counters(), "worker_threads": workers}
    print(json.dumps(report), flush=True)
    if mode == "hang":  # until it is killed
        threading.Event().wait()
    if mode == "leave":  # when standard input ends
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
