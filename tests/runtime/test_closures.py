"""Tensors that kernel code reaches without being given them: closures, defaults, partials, globals, attributes."""

import functools
import subprocess
import sys
import textwrap
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.exc import DifferentiationError, InputError, Unsupported
from helion_rt.runtime.counters import counters
from helion_rt.runtime.slot import registry

SHIFT = torch.arange(10.0)
FACTOR = 2.0
HOLDER = types.SimpleNamespace(shift=torch.ones(10))


@helion.kernel
def apply(x: torch.Tensor, epilogue=lambda value, tile: value) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = epilogue(x[tile], tile)
    return out


def shifted(value, tile):
    return value + SHIFT[tile[1]]


def times(weight, value, tile, scale=1.0):
    return value * weight[tile[1]] * scale


def make_global():
    @helion.kernel
    def with_globals(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for rows, columns in hl.tile(x.size()):
            out[rows, columns] = shifted(x[rows, columns], (rows, columns)) * FACTOR
        return out

    return with_globals


def slots_of(kernel):
    return [s for s in registry.all() if s.kernel is kernel]


@pytest.fixture(autouse=True)
def forget():
    apply.forget(slots_of(apply))


def test_a_new_closure_over_another_tensor_is_the_same_signature():
    x = torch.randn(7, 10)
    for _ in range(4):
        bias = torch.randn(10)
        out = apply(x, lambda value, tile: torch.relu(value + bias[tile[1]]))  # noqa: B023
        assert torch.equal(out, torch.relu(x + bias))
    assert counters.captures == 1 and len(apply._routes) == 1 and len(apply._families) == 1


def test_the_tensor_is_read_at_each_call():
    x, bias = torch.randn(7, 10), torch.zeros(10)
    epilogue = lambda value, tile: value + bias[tile[1]]  # noqa: E731
    assert torch.equal(apply(x, epilogue), x)
    bias += 1
    assert torch.equal(apply(x, epilogue), x + 1)


def test_other_shapes_dtypes_and_numbers_are_other_signatures():
    x = torch.randn(7, 10)
    for bias in (torch.randn(10), torch.randn(10).bfloat16(), torch.randn(1, 10)[0]):
        for scale in (2.0, 3.0, 2.0):
            out = apply(x, lambda value, tile: value * scale + bias[tile[1]])  # noqa: B023
            assert torch.allclose(out, x * scale + bias, atol=1e-5)  # XLA may multiply and add in one step
    assert counters.captures == 4  # two dtypes, two scales


def test_two_lambdas_on_a_line_are_told_apart():
    x, a, b = torch.randn(7, 10), torch.randn(10), torch.randn(10)
    first, second = (lambda v, t: v + a[t[1]] * 2), (lambda v, t: v + b[t[1]] * 3)
    assert torch.equal(apply(x, first), x + a * 2) and torch.equal(apply(x, second), x + b * 3)


def test_which_names_have_the_same_tensor_matters():
    x, a, b = torch.randn(7, 10), torch.randn(10), torch.randn(10)

    def three(p, q, r):
        return apply(x, lambda v, t: v + p[t[1]] + 2 * q[t[1]] + 4 * r[t[1]])

    for p, q, r in ((a, a, b), (a, b, b), (a, b, a), (a, a, a)):
        assert torch.allclose(three(p, q, r), x + p + 2 * q + 4 * r, atol=1e-5)


def test_partials_defaults_containers_attributes_and_helpers():
    x, w = torch.randn(7, 10), torch.randn(10)
    pair = [w, torch.randn(10)]
    assert torch.allclose(apply(x, functools.partial(times, w, scale=0.5)), x * w * 0.5)
    assert torch.equal(apply(x, lambda value, tile, b=w: value + b[tile[1]]), x + w)
    assert torch.equal(apply(x, lambda value, tile: value + pair[1][tile[1]]), x + pair[1])
    assert torch.equal(apply(x, lambda value, tile: value + HOLDER.shift[tile[1]]), x + HOLDER.shift)
    HOLDER.shift = torch.randn(10)
    assert torch.equal(apply(x, lambda value, tile: value + HOLDER.shift[tile[1]]), x + HOLDER.shift)
    helper = lambda value, tile: shifted(value, tile) + w[tile[1]]  # noqa: E731
    assert torch.allclose(apply(x, lambda value, tile: helper(value, tile) * 2), (x + SHIFT + w) * 2)


def test_globals_are_read_at_each_call(monkeypatch):
    kernel, x = make_global(), torch.randn(6, 10)
    assert torch.equal(kernel(x), (x + SHIFT) * 2)
    SHIFT.add_(1)
    assert torch.equal(kernel(x), (x + SHIFT) * 2) and counters.captures == 1
    for new in (torch.randn(10), torch.randn(10).bfloat16()):
        monkeypatch.setitem(globals(), "SHIFT", new)
        assert torch.equal(kernel(x), (x + new) * 2)
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    assert torch.equal(kernel(x), (x + new) * 3)


def test_jax_arrays_in_closures():
    x, bias = torch.randn(7, 10), jnp.arange(10.0)
    epilogue = lambda value, tile: value + bias[tile[1]]  # noqa: E731
    out = apply(x, epilogue)
    assert isinstance(out, torch.Tensor) and np.allclose(out, x.numpy() + np.asarray(bias))
    out = apply(jnp.asarray(x.numpy()), epilogue)
    assert isinstance(out, jax.Array) and np.allclose(out, x.numpy() + np.asarray(bias))
    weight = torch.randn(10)
    out = apply(jnp.asarray(x.numpy()), lambda value, tile: value * weight[tile[1]])
    assert isinstance(out, jax.Array) and np.allclose(out, (x * weight).numpy())


def test_a_closure_over_a_traced_array():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((7, 10), np.float32))

    def f(bias):
        return apply(x, lambda value, tile: value + bias[tile[1]])

    assert np.allclose(jax.jit(f)(jnp.arange(10.0)), x + jnp.arange(10.0))
    assert np.allclose(jax.vmap(f)(jnp.ones((2, 10))), (x + 1)[None])
    with pytest.raises(DifferentiationError, match="backward"):
        jax.grad(lambda b: f(b).sum())(jnp.arange(10.0))


def test_what_a_closure_reaches_is_checked_as_arguments_are():
    x, bad = torch.randn(7, 10), torch.zeros(10, dtype=torch.float64)
    with pytest.raises(InputError, match=r"bad.*float64"):
        apply(x, lambda value, tile: value + bad[tile[1]])


class Hidden:
    def __init__(self):
        self.tensors = {1: torch.ones(10)}

    def get(self):
        return next(iter(self.tensors.values()))


def test_a_tensor_that_cannot_be_found_is_refused():
    hidden = Hidden()
    with pytest.raises(Unsupported, match="outside of the kernel"):
        apply(torch.randn(7, 10), lambda value, tile: value + hidden.get())


def test_the_program_of_a_closure_is_found_again_by_another_process(own_cache, tmp_path):
    (tmp_path / "closure_kernel.py").write_text(
        textwrap.dedent("""
        import torch, helion_rt as helion, helion_rt.language as hl
        @helion.kernel
        def apply(x: torch.Tensor, epilogue) -> torch.Tensor:
            out = torch.empty_like(x)
            for tile in hl.tile(x.size()):
                out[tile] = epilogue(x[tile], tile)
            return out
        def main(shift):
            x, bias = torch.ones(4, 6), torch.full((6,), shift)
            out = apply(x, lambda value, tile: value + bias[tile[1]])
            assert (out == 1 + shift).all()
            helion.wait_for_tuning(30)
            print(helion.process_counters()["captures"])
        """)
    )
    captures = [
        int(subprocess.run([sys.executable, "-c", f"import closure_kernel; closure_kernel.main({shift})"], cwd=tmp_path, text=True,
                           capture_output=True, check=True).stdout)
        for shift in (1.0, 2.0)
    ]  # fmt: skip
    assert captures == [1, 0]
