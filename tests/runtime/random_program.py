"""A kernel that draws random numbers, for the process test: ``python random_program.py`` prints JSON. Not a test itself."""

import json

import torch

import helion_rt as helion
import helion_rt.language as hl


@helion.kernel
def noisy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + torch.randn_like(x[tile]) * torch.rand([tile])
    return out


if __name__ == "__main__":
    torch.manual_seed(5)
    found = [noisy(torch.zeros(100)).tolist() for _ in range(2)]
    helion.wait_for_tuning(240)
    print(json.dumps({"found": found, "counters": helion.process_counters(), "status": helion.status()}))
