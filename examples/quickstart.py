"""A kernel, a call, and what the tuner made of it: ``python examples/quickstart.py``."""

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    n = y.size(1)
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for tile_m, tile_n in hl.tile([m, n]):
        acc = hl.zeros([tile_m, tile_n], dtype=torch.float32)
        for tile_k in hl.tile(k):
            acc = torch.addmm(acc, x[tile_m, tile_k], y[tile_k, tile_n])
        out[tile_m, tile_n] = acc
    return out


if __name__ == "__main__":
    x, y = torch.randn(512, 512), torch.randn(512, 512)
    torch.testing.assert_close(matmul(x, y), x @ y, rtol=1e-4, atol=1e-3)  # captured, lowered, run: the default serves
    print("now: ", helion.status()[0])
    helion.wait_for_tuning()
    torch.testing.assert_close(matmul(x, y), x @ y, rtol=1e-4, atol=1e-3)  # the winner, if there is one; run me again: from the first call
    print("then:", helion.status()[0])
