"""Values of tensors that Python code of a kernel reads: each call is served for its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

import helion_rt
import helion_rt.language as hl
from helion_rt.exc import Unsupported, ValueNeeded
from helion_rt.runtime import probes
from helion_rt.runtime.counters import counters
from helion_rt.runtime.slot import registry


@helion_rt.kernel
def widen(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    n = int(offsets[-1].item())
    out = torch.zeros([n, x.size(1)], dtype=x.dtype)
    for tile in hl.tile(n):
        out[tile, :] = x[tile, :] * 2
    return out


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_shape_of_the_result_comes_from_a_tensor(dtype: torch.dtype) -> None:
    x = torch.randn(12, 7)
    for n in (5, 9, 5, 12):
        out = widen(x, torch.tensor([0, 2, n], dtype=dtype))
        torch.testing.assert_close(out, x[:n] * 2)
    assert counters.captures == 3  # a number that was there before is not captured again


def test_jax_arrays_are_read_too() -> None:
    x = jnp.arange(24.0).reshape(8, 3)
    for n in (3, 8, 3):
        assert jnp.array_equal(widen(x, jnp.array([0, n])), x[:n] * 2)
    assert counters.captures == 2


def test_a_new_process_finds_the_program_of_each_value() -> None:
    x = torch.randn(6, 3)

    def fresh() -> helion_rt.runtime.kernel.Kernel:
        return helion_rt.kernel(widen.fn)

    for n in (2, 4):
        kernel = fresh()
        kernel(x, torch.tensor([0, n]))
        assert kernel.bind(x, torch.tensor([0, n])).done.wait(60)  # now it is stored
    before = counters.captures
    for n in (2, 4, 2):
        torch.testing.assert_close(fresh()(x, torch.tensor([0, n])), x[:n] * 2)
    assert counters.captures == before == 2


@helion_rt.kernel
def mean_of_kept(x: torch.Tensor, labels: torch.Tensor, ignored: int) -> torch.Tensor:
    kept = (labels != ignored).sum().item()
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.where(labels[tile] != ignored, x[tile], 0.0) / max(kept, 1)
    return out


def test_a_number_that_python_does_not_look_at_is_no_part_of_the_signature() -> None:
    x = torch.randn(20)
    for count in (4, 20, 0):
        labels = torch.where(torch.arange(20) < count, 3, -1)
        expected = torch.where(labels != -1, x.double(), 0.0) / max(count, 1)
        torch.testing.assert_close(mean_of_kept(x, labels, -1).double(), expected, rtol=1e-6, atol=1e-6)
    assert counters.captures == 1


@helion_rt.kernel
def by_flag(x: torch.Tensor, mask: torch.Tensor, sizes: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    factor = 1
    if mask.any():
        factor = sizes.tolist()[1]
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * factor
    return out


def test_a_branch_on_a_value_and_a_list_of_values() -> None:
    x = torch.randn(9)
    on, off = torch.tensor([False, True]), torch.tensor([False, False])
    for mask, sizes, factor in ((off, [1, 2], 1), (on, [1, 2], 2), (on, [1, 3], 3), (off, [1, 3], 1), (on, [1, 2], 2)):
        torch.testing.assert_close(by_flag(x, mask, torch.tensor(sizes)), x * factor)


@helion_rt.kernel
def returns_a_number(x: torch.Tensor) -> Any:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
    return out, x.argmax().item(), float(x[0])


def test_numbers_are_returned_as_numbers() -> None:
    for values in ([1.5, 0.0, 4.0], [7.0, 0.5, -0.0]):
        x = torch.tensor(values)
        out, where, first = returns_a_number(x)
        torch.testing.assert_close(out, x + 1)
        assert type(where) is int and where == x.argmax().item()
        assert type(first) is float and first == values[0]


@helion_rt.kernel
def inner_bound(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    longest = lengths.max().item()
    out = torch.zeros([x.size(0)], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        total = hl.zeros([tile], dtype=torch.float32)
        for k in hl.tile(longest):
            total = total + x[tile, k].sum(-1)
        out[tile] = total
    return out


def test_an_inner_loop_is_as_long_as_a_value_says() -> None:
    x = torch.randn(6, 10)
    for longest in (3, 10):
        out = inner_bound(x, torch.tensor([1, longest, 2]))
        torch.testing.assert_close(out.double(), x[:, :longest].double().sum(1), rtol=1e-5, atol=1e-5)


def test_large_values_are_not_taken_for_block_sizes() -> None:
    x = torch.randn(8198, 2)
    torch.testing.assert_close(widen(x, torch.tensor([0, 2 * 4099])), x * 2)
    torch.testing.assert_close(widen(x, torch.tensor([0, 4099])), x[:4099] * 2)


def test_without_values_the_error_says_so() -> None:
    x, offsets = jnp.ones((4, 2)), jnp.array([0, 3])
    for call in (
        lambda: jax.jit(widen)(x, offsets),
        lambda: widen.lower(jax.ShapeDtypeStruct((4, 2), jnp.float32), jax.ShapeDtypeStruct((2,), jnp.int32)),
        lambda: widen.lower(torch.empty(4, 2, device="meta"), torch.empty(2, device="meta", dtype=torch.int32)),
    ):
        with pytest.raises(ValueNeeded, match="reads values of argument 'offsets'") as error:
            call()
        assert error.value.line == widen.fn.__code__.co_firstlineno + 2
    assert widen.lower(x, offsets).source


def test_without_values_after_a_call_with_some() -> None:
    x = jnp.ones((4, 2))
    assert widen(x, jnp.array([0, 3])).shape == (3, 2)
    with pytest.raises(ValueNeeded):
        jax.jit(widen)(x, jnp.array([0, 3]))
    assert jax.jit(lambda a: widen(a, jnp.array([0, 2])) if False else widen(a, offsets))(x).shape == (2, 2)


offsets = jnp.array([0, 2])


@helion_rt.kernel
def after_a_loop(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1
    if out.sum() > 0:
        return out
    return x


def test_a_value_that_a_loop_computes_is_refused() -> None:
    with pytest.raises(Unsupported, match="that a tile loop computes") as error:
        after_a_loop(torch.ones(3))
    assert error.value.line == after_a_loop.fn.__code__.co_firstlineno + 5


def test_values_have_no_end_and_slots_do() -> None:
    @helion_rt.kernel
    def scaled(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        factor = int(n)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] * factor
        return out

    old = probes.SLOTS_BY_VALUE
    probes.SLOTS_BY_VALUE = 2
    try:
        for n in range(4):
            assert scaled(torch.ones(2), torch.tensor(n)).tolist() == [n, n]
    finally:
        probes.SLOTS_BY_VALUE = old
    assert sum(slot.kernel is scaled for slot in registry.all()) == 3


def test_a_tensor_that_is_too_large_to_be_part_of_a_signature() -> None:
    @helion_rt.kernel
    def listed(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        values = x.tolist()
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + values[0]
        return out

    with pytest.raises(Unsupported, match="read into Python"):
        listed(torch.ones(5000))

