"""Operations that are others put together. PyTorch's own table of these imports sympy and ``torch._dynamo``: seconds.

A function here takes the arguments of the ATen operation and is run on traced tensors. Those marked ``_wide`` compute in float32
where a tensor is narrower, and round once at the end, as PyTorch does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]
MOST_PICKED = 32  # what topk and sort may pick one by one


def _wide(fn: Function) -> Function:
    """``fn`` in float32 for narrower floats; the result has the dtype of the first tensor."""

    def leaf(value: Any) -> Any:
        narrow = isinstance(value, torch.Tensor) and value.dtype.is_floating_point and value.dtype.itemsize < 4
        return value.to(torch.float32) if narrow else value

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        dtypes = [a.dtype for a in args if isinstance(a, torch.Tensor)]
        dtype = functools.reduce(torch.promote_types, dtypes)
        result = fn(*map(leaf, args), **{k: leaf(v) for k, v in kwargs.items()})
        if not dtype.is_floating_point or dtype.itemsize >= 4:
            return result
        # Statistics, masks and positions keep their own.
        results = result if isinstance(result, tuple) else (result,)
        back = tuple(r.to(dtype) if r.dtype is torch.float32 else r for r in results)
        return back if isinstance(result, tuple) else back[0]

    return wrapped


# Activations.


@_wide
def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Any:
    scaled = x * beta
    return torch.where(scaled > threshold, x, torch.log1p(torch.exp(scaled.clamp(max=threshold))) / beta)


@_wide
def elu(x: Any, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


@_wide
def celu(x: Any, alpha: float = 1.0) -> Any:
    return torch.where(x > 0, x, torch.expm1(x / alpha) * alpha)


@_wide
def leaky_relu(x: Any, slope: float = 0.01) -> Any:
    return torch.where(x > 0, x, x * slope)


@_wide
def prelu(x: Any, weight: Any) -> Any:
    return torch.where(x > 0, x, x * weight)


def hardtanh(x: Any, low: float = -1, high: float = 1) -> Any:
    return x.clamp(low, high)


@_wide
def mish(x: Any) -> Any:
    return x * torch.tanh(softplus(x))


@_wide
def hardsigmoid(x: Any) -> Any:
    return (x + 3).clamp(0, 6) / 6


@_wide
def hardswish(x: Any) -> Any:
    return x * (x + 3).clamp(0, 6) / 6


@_wide
def log_sigmoid_forward(x: Any) -> Any:
    small = torch.exp(-x.abs())
    return x.clamp(max=0) - torch.log1p(small), small


def softshrink(x: Any, limit: float = 0.5) -> Any:
    return torch.where(x > limit, x - limit, torch.where(x < -limit, x + limit, x * 0))


def hardshrink(x: Any, limit: float = 0.5) -> Any:
    return torch.where((x >= -limit) & (x <= limit), torch.zeros_like(x), x)


def threshold(x: Any, limit: float, value: float) -> Any:
    return torch.where(x <= limit, torch.full_like(x, value), x)


@_wide
def logit(x: Any, eps: float | None = None) -> Any:
    x = x if eps is None else x.clamp(eps, 1 - eps)
    return torch.log(x / (1 - x))


@_wide
def glu(x: Any, dim: int = -1) -> Any:
    a, b = x.chunk(2, dim)
    return a * torch.sigmoid(b)


# Arithmetic.


def lerp(start: Any, end: Any, weight: Any) -> Any:
    """From the nearer end, as PyTorch computes it: exact at both."""
    if not isinstance(weight, torch.Tensor):
        return _lerp_number(start, end, weight)
    return _lerp_tensor(start, end, weight)


@_wide
def _lerp_number(start: Any, end: Any, weight: float) -> Any:
    return start + weight * (end - start) if abs(weight) < 0.5 else end - (end - start) * (1 - weight)


@_wide
def _lerp_tensor(start: Any, end: Any, weight: Any) -> Any:
    difference = end - start
    return torch.where(weight.abs() < 0.5, start + weight * difference, end - difference * (1 - weight))


def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.to(x.dtype)
    else:
        value = torch.full_like(x, value)
    return torch.where(mask, value, x)


def nan_to_num(x: Any, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Any:
    if not x.dtype.is_floating_point:
        return x.clone()
    limits = torch.finfo(x.dtype)
    x = torch.where(torch.isnan(x), torch.full_like(x, 0.0 if nan is None else nan), x)
    x = torch.where(x == math.inf, torch.full_like(x, limits.max if posinf is None else posinf), x)
    return torch.where(x == -math.inf, torch.full_like(x, limits.min if neginf is None else neginf), x)


@_wide
def xlogy(x: Any, y: Any) -> Any:
    y = torch.full_like(x, y) if not isinstance(y, torch.Tensor) else y
    x = torch.full_like(y, x) if not isinstance(x, torch.Tensor) else x
    product = x * torch.log(y)
    return torch.where(torch.isnan(y), torch.full_like(product, math.nan), torch.where(x == 0, torch.zeros_like(product), product))


@_wide
def entr(x: Any) -> Any:
    value = torch.where(x > 0, -x * torch.log(x), torch.where(x == 0, torch.zeros_like(x), torch.full_like(x, -math.inf)))
    return torch.where(torch.isnan(x), x, value)


@_wide
def sinc(x: Any) -> Any:
    scaled = x * math.pi
    return torch.where(x == 0, torch.ones_like(x), torch.sin(scaled) / torch.where(x == 0, torch.ones_like(x), scaled))


@_wide
def logaddexp2(a: Any, b: Any) -> Any:
    top = torch.maximum(a, b)
    apart = torch.exp2(-(a - b).abs())
    return torch.where(torch.isinf(a) & (a == b), a, top + torch.log1p(apart) * (1 / math.log(2)))


@_wide
def ldexp(x: Any, exponent: Any) -> Any:
    return x * (torch.exp2(exponent.to(torch.float32)) if isinstance(exponent, torch.Tensor) else 2.0**exponent)


def heaviside(x: Any, at_zero: Any) -> Any:
    return torch.where(x == 0, at_zero, (x > 0).to(x.dtype))


def deg2rad(x: Any) -> Any:
    return x * (math.pi / 180)


def rad2deg(x: Any) -> Any:
    return x * (180 / math.pi)


# Reductions.


def std(x: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return _rooted(x, dim, correction, keepdim)[0]


def std_mean(x: Any, dim: Any = None, correction: float | None = None, keepdim: bool = False) -> Any:
    return _rooted(x, dim, correction, keepdim)


@_wide
def _rooted(x: Any, dim: Any, correction: float | None, keepdim: bool) -> Any:
    dims = list(range(x.dim())) if dim is None or (isinstance(dim, (list, tuple)) and not dim) else dim
    variance, mean = torch.var_mean(x, dims, correction=1 if correction is None else correction, keepdim=keepdim)
    return torch.sqrt(variance), mean


def vector_norm(x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    out = dtype or x.dtype
    x = x.to(torch.float32 if out.itemsize < 4 else out)
    dims = list(range(x.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    if ord == math.inf:
        value = x.abs().amax(dims, keepdim)
    elif ord == -math.inf:
        value = x.abs().amin(dims, keepdim)
    elif ord == 0:
        value = (x != 0).to(x.dtype).sum(dims, keepdim)
    elif ord == 1:
        value = x.abs().sum(dims, keepdim)
    elif ord == 2:
        value = torch.sqrt((x * x).sum(dims, keepdim))
    else:
        value = (x.abs() ** ord).sum(dims, keepdim) ** (1 / ord)
    return value.to(out)


def norm(x: Any, p: Any = 2, dim: Any = None, keepdim: bool = False, dtype: torch.dtype | None = None) -> Any:
    return vector_norm(x, 2 if p is None else p, dim if dim != [] else None, keepdim, dtype=dtype)


def count_nonzero(x: Any, dim: Any = None) -> Any:
    dims = list(range(x.dim())) if dim is None or dim == [] else dim
    return (x != 0).to(torch.int64).sum(dims)


def nansum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    return torch.where(torch.isnan(x), torch.zeros_like(x), x).sum(list(range(x.dim())) if dim is None else dim, keepdim, dtype=dtype)


def aminmax(x: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    dims = list(range(x.dim())) if dim is None else [dim]
    return x.amin(dims, keepdim), x.amax(dims, keepdim)


# Losses, element by element.


def _reduced(loss: Any, reduction: int) -> Any:
    return loss if reduction == 0 else loss.mean() if reduction == 1 else loss.sum()


@_wide
def mse_loss(x: Any, target: Any, reduction: int = 1) -> Any:
    return _reduced((x - target) * (x - target), reduction)


@_wide
def huber_loss(x: Any, target: Any, reduction: int = 1, delta: float = 1.0) -> Any:
    apart = (x - target).abs()
    return _reduced(torch.where(apart < delta, apart * apart * 0.5, (apart - delta * 0.5) * delta), reduction)


@_wide
def smooth_l1_loss(x: Any, target: Any, reduction: int = 1, beta: float = 1.0) -> Any:
    apart = (x - target).abs()
    return _reduced(apart if beta == 0 else torch.where(apart < beta, apart * apart * (0.5 / beta), apart - beta * 0.5), reduction)


@_wide
def binary_cross_entropy(x: Any, target: Any, weight: Any = None, reduction: int = 1) -> Any:
    loss = -(target * torch.log(x).clamp(min=-100) + (1 - target) * torch.log1p(-x).clamp(min=-100))
    return _reduced(loss if weight is None else loss * weight, reduction)


@_wide
def binary_cross_entropy_with_logits(x: Any, target: Any, weight: Any = None, pos_weight: Any = None, reduction: int = 1) -> Any:
    soft = torch.log1p(torch.exp(-x.abs())) - x.clamp(max=0)  # log(1 + exp(-x))
    loss = (1 - target) * x + (soft if pos_weight is None else soft * (1 + (pos_weight - 1) * target))
    return _reduced(loss if weight is None else loss * weight, reduction)


# Moving elements.


def roll(x: Any, shifts: Any, dims: Any = ()) -> Any:
    if not dims:
        return roll(x.reshape(-1), [shifts] if isinstance(shifts, int) else shifts, [0]).reshape(x.shape)
    for shift, dim in zip(shifts, dims, strict=True):
        size = x.shape[dim]
        shift = shift % size if size else 0
        if shift:
            x = torch.cat([x.narrow(dim, size - shift, shift), x.narrow(dim, 0, size - shift)], dim)
    return x.clone()


def repeat(x: Any, repeats: Any) -> Any:
    x = x.reshape([1] * (len(repeats) - x.dim()) + list(x.shape))
    for dim, times in enumerate(repeats):
        if times != 1:
            x = torch.cat([x] * times, dim)
    return x.clone()


def _triangle(x: Any, diagonal: int, lower: bool) -> Any:
    rows = torch.arange(x.shape[-2], dtype=torch.int32)[:, None]
    columns = torch.arange(x.shape[-1], dtype=torch.int32)[None, :]
    keep = columns - rows <= diagonal if lower else columns - rows >= diagonal
    return torch.where(keep, x, torch.zeros_like(x))


def tril(x: Any, diagonal: int = 0) -> Any:
    return _triangle(x, diagonal, True)


def triu(x: Any, diagonal: int = 0) -> Any:
    return _triangle(x, diagonal, False)


def constant_pad_nd(x: Any, pad: Any, value: Any = 0) -> Any:
    for i in range(len(pad) // 2):
        dim, (before, after) = x.dim() - 1 - i, pad[2 * i : 2 * i + 2]
        cut = max(0, -before), max(0, -after)
        x = x.narrow(dim, cut[0], x.shape[dim] - cut[0] - cut[1]) if any(cut) else x
        filler = [torch.full([n if d == dim else m for d, m in enumerate(x.shape)], value, dtype=x.dtype) for n in (before, after) if n > 0]
        parts = [*filler[: before > 0], x, *filler[before > 0 :]]
        x = torch.cat(parts, dim) if filler else x
    return x.clone()


def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    dim1, dim2 = dim1 % x.dim(), dim2 % x.dim()
    rows, columns = x.shape[dim1], x.shape[dim2]
    first = max(0, -offset), max(0, offset)
    count = min(rows - first[0], columns - first[1])
    x = x.movedim((dim1, dim2), (-2, -1)).narrow(-2, first[0], count).narrow(-1, first[1], count)
    same = torch.arange(count, dtype=torch.int32)[:, None] == torch.arange(count, dtype=torch.int32)[None, :]
    # Picked, not multiplied: what is off the diagonal may be infinite.
    kept = torch.where(same, x, torch.zeros_like(x))
    return kept.to(torch.int32).sum(-2).to(x.dtype) if x.dtype is torch.bool else kept.sum(-2, dtype=x.dtype)


def diag_embed(x: Any, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    padded = constant_pad_nd(x, [0, abs(offset)]) if offset else x
    size = padded.shape[-1]
    rows, columns = torch.arange(size, dtype=torch.int32)[:, None], torch.arange(size, dtype=torch.int32)[None, :]
    spread = padded.unsqueeze(-1 if offset >= 0 else -2).expand(*padded.shape, size)
    full = torch.where(columns - rows == offset, spread, torch.zeros((), dtype=x.dtype))
    return full.movedim((-2, -1), (dim1, dim2))


# Picking by position: no machine here gathers along lanes, but every one compares.


def gather(x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Any:
    """``x`` at ``index`` along ``dim``; the other dimensions of both must be the same size."""
    dim %= max(1, x.dim())
    if any(n != m for d, (n, m) in enumerate(zip(x.shape, index.shape, strict=True)) if d != dim):
        raise ValueError(f"gather along dimension {dim}: the other sizes of the tensor and of the index differ")
    positions = torch.arange(x.shape[dim], dtype=torch.int32).reshape([-1 if d == 0 else 1 for d in range(x.dim() - dim)])
    spread, wanted = x.unsqueeze(dim), index.unsqueeze(dim + 1)
    here = torch.where(wanted == positions, spread, torch.zeros((), dtype=x.dtype))
    return here.to(torch.int32).sum(dim + 1).to(torch.bool) if x.dtype is torch.bool else here.sum(dim + 1, dtype=x.dtype)


def nll_loss_forward(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    dim = 1 if x.dim() > 1 else 0
    valid = target != ignore_index
    safe = torch.where(valid, target, torch.zeros_like(target))
    loss = -gather(x, dim, safe.unsqueeze(dim)).squeeze(dim)
    each = torch.ones_like(loss)
    if weight is not None:
        weights = weight.reshape([-1 if d == dim else 1 for d in range(x.dim())]).expand(x.shape)
        each = gather(weights, dim, safe.unsqueeze(dim)).squeeze(dim)
    each = torch.where(valid, each, torch.zeros_like(each))
    loss = torch.where(valid, loss, torch.zeros_like(loss)) * each
    total = each.sum()
    return (loss if reduction == 0 else loss.sum() / total if reduction == 1 else loss.sum()), total


def one_hot(x: Any, classes: int = -1) -> Any:
    return (x.unsqueeze(-1) == torch.arange(classes, dtype=torch.int32)).to(torch.int64)


def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """By ``k`` arg-maxima, one after the other. Equal elements: the first one first."""
    if k > MOST_PICKED:
        x.tracer.refuse(f"topk or sort of {k} elements: at most {MOST_PICKED} are picked one by one", "sort before the kernel")
    dim %= x.dim()
    values, indices = [], []
    left = x
    positions = torch.arange(x.shape[dim], dtype=torch.int32).reshape([-1 if d == 0 else 1 for d in range(x.dim() - dim)])
    taken = torch.zeros(x.shape, dtype=torch.bool)
    for _ in range(k):
        at = _arg_extreme(left, taken, positions, dim, largest)
        indices.append(at)
        values.append(gather(x, dim, at))
        taken = taken | (positions == at)
    return torch.cat(values, dim), torch.cat(indices, dim).to(torch.int64)


def _arg_extreme(x: Any, taken: Any, positions: Any, dim: int, largest: bool) -> Any:
    """The first position along ``dim`` of the greatest (or least) element that is not ``taken``; NaN counts as greatest."""
    if x.dtype.is_floating_point:
        low, high = -math.inf, math.inf
        x = torch.where(torch.isnan(x), torch.full_like(x, high), x)
    else:
        low, high = torch.iinfo(x.dtype).min, torch.iinfo(x.dtype).max
    rest = torch.where(taken, torch.full_like(x, low if largest else high), x)
    best = rest.amax(dim, True) if largest else rest.amin(dim, True)
    # What is taken may equal the best, if that is the lowest there is.
    where = torch.where((rest == best) & ~taken, positions, torch.full_like(positions, 2**31 - 1))
    return where.amin(dim, True)


def sort(x: Any, dim: int = -1, descending: bool = False, *, stable: bool | None = None) -> Any:
    return topk(x, x.shape[dim], dim, descending)


OWN: dict[str, Function] = {
    "softplus": softplus, "elu": elu, "celu": celu, "leaky_relu": leaky_relu, "_prelu_kernel": prelu, "hardtanh": hardtanh, "mish": mish,
    "hardsigmoid": hardsigmoid, "hardswish": hardswish, "log_sigmoid_forward": log_sigmoid_forward, "softshrink": softshrink,
    "hardshrink": hardshrink, "threshold": threshold, "logit": logit, "glu": glu, "lerp": lerp, "masked_fill": masked_fill,
    "nan_to_num": nan_to_num, "xlogy": xlogy, "special_entr": entr, "sinc": sinc, "logaddexp2": logaddexp2, "ldexp": ldexp,
    "heaviside": heaviside, "deg2rad": deg2rad, "rad2deg": rad2deg, "std": std, "std_mean": std_mean, "linalg_vector_norm": vector_norm,
    "norm": norm, "count_nonzero": count_nonzero, "nansum": nansum, "aminmax": aminmax, "mse_loss": mse_loss, "huber_loss": huber_loss,
    "smooth_l1_loss": smooth_l1_loss, "binary_cross_entropy": binary_cross_entropy,
    "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits, "roll": roll, "repeat": repeat, "tril": tril, "triu": triu,
    "constant_pad_nd": constant_pad_nd, "diagonal": diagonal, "diag_embed": diag_embed, "gather": gather,
    "nll_loss_forward": nll_loss_forward, "topk": topk, "sort": sort, "one_hot": one_hot,
}  # fmt: skip
