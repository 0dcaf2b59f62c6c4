"""Is a kernel's result what is expected? For kernels that come with a reference in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def widened(args: Sequence[Any]) -> list[Any]:
    """The arguments with floats in float64."""
    return [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]


def is_right(out: Any, wanted: Any, tolerance: float, pick: Callable[[Any], Any] | None = None) -> bool:
    """Every output within ``tolerance`` of what is wanted, relative to it plus the root of its mean square.

    Args:
        out: a tensor, None, or a sequence of them.
        wanted: the same, or a predicate on the (picked) result.
        pick: the part of a result, and of what is wanted, that counts.
    """
    if pick is not None:
        out, wanted = pick(out), pick(wanted)
    if callable(wanted) and not isinstance(wanted, torch.Tensor):
        return bool(wanted(out))
    outs, wants = ([*x] if isinstance(x, (tuple, list)) else [x] for x in (out, wanted))
    return len(outs) == len(wants) and all(_is_close(o, w, tolerance) for o, w in zip(outs, wants, strict=True))


def _is_close(out: Any, want: Any, tolerance: float) -> bool:
    if out is None or want is None:
        return out is want
    out, want = torch.as_tensor(out).double(), torch.as_tensor(want).double()
    if out.shape != want.shape or not torch.equal(out.isfinite(), want.isfinite()):
        return False
    out, want = out[want.isfinite()], want[want.isfinite()]
    if not want.numel():
        return True
    return bool(((out - want).abs() <= tolerance * (want.abs() + max(float(want.square().mean().sqrt()), 1e-12))).all())
