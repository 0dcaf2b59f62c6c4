"""What a kernel may be called with: trees of tensors, numbers, dtypes, layouts, tensors that it writes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.exc import InputError
from helion_rt.runtime.counters import counters


@helion.kernel
def double(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] + x[tile]
    return out


@helion.kernel
def copy(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile]
    return out


@helion.kernel
def weighted(pairs: list, scale: float, shift: int) -> torch.Tensor:
    """Sum of ``a * b`` over the pairs."""
    out = torch.empty_like(pairs[0][0])
    for tile in hl.tile(out.size()):
        acc = hl.zeros([*tile], dtype=torch.float32)
        for a, b in pairs:
            acc = acc + a[tile] * b[tile]
        out[tile] = acc * scale + shift
    return out


@helion.kernel
def bump_all(tensors: list, by: float) -> None:
    for t in tensors:
        for tile in hl.tile(t.size()):
            t[tile] = t[tile] + by


@helion.kernel
def shift_into(x: torch.Tensor, y: torch.Tensor) -> None:
    """``y[i] = x[n - 1 - i]``: what it reads is elsewhere than what it writes."""
    n = x.size(0)
    for tile in hl.tile(n):
        y[tile] = x[n - 1 - tile.index]


@helion.kernel
def scaled(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] * s
    return out


@helion.kernel
def take(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0)], dtype=table.dtype, device=table.device)
    for tile in hl.tile(index.size(0)):
        out[tile] = table[index[tile]]
    return out


@helion.kernel
def maybe(x: torch.Tensor, bias: torch.Tensor | None, negate: bool) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        value = x[tile]
        if bias is not None:
            value = value + bias[tile]
        if negate:
            value = -value
        out[tile] = value
    return out


@pytest.mark.parametrize("kind", [tuple, list])
def test_trees_of_tensors(kind):
    pairs = kind(kind(torch.randn(20, 13) for _ in range(2)) for _ in range(3))
    expected = sum(a.double() * b.double() for a, b in pairs) * 0.5 + 3
    for _ in range(2):
        assert torch.allclose(weighted(pairs, 0.5, 3).double(), expected, atol=1e-5)
    arrays = kind(kind(jnp.asarray(t.numpy()) for t in pair) for pair in pairs)
    assert np.allclose(weighted(arrays, 0.5, 3), expected.numpy(), atol=1e-5)
    assert counters.captures <= 1  # lists and tuples, torch's and JAX's, are one signature


def test_a_dict_is_refused():
    with pytest.raises(InputError, match="dict"):
        weighted({"a": torch.ones(3)}, 1.0, 1)
    with pytest.raises(InputError, match="dict"):
        weighted([{"a": torch.ones(3)}], 1.0, 1)


def test_none_bool_and_a_tensor_of_rank_zero():
    x, b = torch.randn(9, 5), torch.randn(9, 5)
    assert torch.equal(maybe(x, None, False), x) and torch.equal(maybe(x, b, True), -(x + b))
    for value in (2.5, -1.0):
        assert torch.equal(scaled(x, torch.tensor(value)), x * value)
    assert counters.captures == 3


FLOATS = [torch.float16, torch.bfloat16, torch.float32]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
def test_dtypes_computed_in(dtype):
    x = (torch.randn(17, 6) * 10).to(dtype)
    out = double(x)
    assert out.dtype is dtype and torch.equal(out, x + x)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float8_e4m3fn, torch.float8_e5m2])
def test_dtypes_that_pass_through(dtype):
    x = (torch.randn(17, 6) > 0) if dtype is torch.bool else torch.randn(17, 6).to(dtype)
    out = copy(x)
    assert out.dtype is dtype and torch.equal(out.view(torch.uint8), x.view(torch.uint8))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float64, torch.uint16])
def test_dtypes_that_are_refused(dtype):
    with pytest.raises(InputError, match=str(dtype).removeprefix("torch.")):
        copy(torch.zeros(4).to(dtype))


def test_wide_integers_as_indices():
    table, index = torch.randn(50), torch.randint(0, 50, (31,))
    assert torch.equal(take(table, index), table[index])
    wide = torch.tensor([1, 2**40, -(2**35)])
    with pytest.raises(InputError, match="do not fit int32"):
        take(wide, torch.tensor([0, 1]))
    small = torch.tensor([5, -7, 9])
    assert torch.equal(take(small, torch.tensor([2, 0])), torch.tensor([9, 5]))
    with pytest.raises(InputError, match="do not fit int32"):
        take(table, torch.tensor([2**32]))  # wrapped it would be 0


@pytest.mark.parametrize("shape", [(0,), (0, 5), (4, 0)])
def test_no_elements(shape):
    for array in (torch.zeros(shape), jnp.zeros(shape)):
        assert tuple(double(array).shape) == shape


def test_layouts():
    base = torch.randn(12, 10)
    for x in (base.T, base[::2, 1::3], base[:1].expand(7, 10), base.as_strided((5, 6), (1, 2)), base.flip(0)):
        assert torch.equal(double(x), x + x)


def test_written_views_of_a_bigger_tensor():
    big = torch.zeros(10, 8)
    bump_all([big[2:4], big[6:9, ::2]], 1.5)
    expected = torch.zeros(10, 8)
    expected[2:4] += 1.5
    expected[6:9, ::2] += 1.5
    assert torch.equal(big, expected)
    bump_all([big[:, :3], big[:, 3:]], 1.0)  # interleaved in memory, no element in common
    assert torch.equal(big, expected + 1)


def test_a_written_tensor_that_shares_elements_is_refused():
    x = torch.arange(8.0)
    for other in (x, x[:], x.view(2, 4).view(8)):
        with pytest.raises(InputError, match="share"):
            shift_into(x, other)
    with pytest.raises(InputError, match="share"):
        bump_all([x[:5], x[4:]], 1.0)
    with pytest.raises(InputError, match="share"):
        bump_all([x, x], 1.0)
    assert torch.equal(x, torch.arange(8.0))
    assert torch.equal(double(x), x * 2) and torch.equal(scaled(x, x[3]), x * 3)  # nothing is written: anything goes
    y = torch.zeros(8)
    shift_into(x, y)
    assert torch.equal(y, x.flip(0))


def test_a_written_tensor_that_cannot_be_written():
    with pytest.raises(InputError, match="cannot be written"):
        bump_all([torch.zeros(1, 4).expand(3, 4)], 1.0)


def test_jax_arrays_do_not_change_and_may_be_the_same():
    x = jnp.arange(8.0)
    assert np.array_equal(shift_into(x, x), x[::-1]) and np.array_equal(x, np.arange(8.0))
    assert np.array_equal(jax.jit(lambda a: shift_into(a, a))(x), x[::-1])
