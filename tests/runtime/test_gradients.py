"""Gradients of kernels with ``backward=``, errors of those without, and ``vmap``."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.exc import ConfigError, DifferentiationError, NoGradient


@helion.kernel
def product_backward(grad: torch.Tensor, x: torch.Tensor, w: torch.Tensor, scale: float):
    grad_x, grad_w = torch.empty_like(x), torch.empty_like(w)
    for tile in hl.tile(x.size()):
        grad_x[tile] = grad[tile] * w[tile] * scale
        grad_w[tile] = grad[tile] * x[tile] * scale
    return grad_x, grad_w


@helion.kernel(backward=product_backward)
def product(x: torch.Tensor, w: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] * w[tile] * scale
    return out


@helion.kernel
def softmax_backward(grad: torch.Tensor, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    result = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        g, y = grad[tile, :].float(), out[tile, :].float()
        result[tile, :] = (y * (g - (g * y).sum(-1, keepdim=True))).to(x.dtype)
    return result


@helion.kernel(backward=softmax_backward, save_outputs=True)
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = torch.softmax(x[tile, :].float(), -1).to(x.dtype)
    return out


def low_high_backward(grad_low, grad_high, tensors):
    _, index = tensors
    return grad_low * 2 + grad_high * index


@helion.kernel(backward=low_high_backward)
def nested(tensors: list):
    x, index = tensors
    low, high = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        low[tile] = x[tile] * 2
        high[tile] = x[tile] * index[tile]
    return low, 7, high


@helion.kernel
def plain(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = torch.exp(x[tile])
    return out


@helion.kernel(backward=lambda *args: args[0])
def bump(x: torch.Tensor, y: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + y[tile]


@helion.kernel
def matmul(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    m, k = x.size()
    _, n = y.size()
    out = torch.empty([m, n], dtype=x.dtype, device=x.device)
    for rows, columns in hl.tile([m, n]):
        acc = hl.zeros([rows, columns], dtype=torch.float32)
        for inner in hl.tile(k):
            acc = hl.dot(x[rows, inner], y[inner, columns], acc=acc)
        out[rows, columns] = acc.to(x.dtype)
    return out


def random(*shape):
    return torch.from_numpy(np.random.default_rng(1).standard_normal(shape, np.float32))


def as_jax(t):
    return jnp.asarray(t.detach().numpy())


@pytest.mark.parametrize("shape", [(16, 32), (13, 7)])
def test_gradients_of_two_arguments_and_a_number(shape):
    x, w, g = random(*shape).requires_grad_(), random(*shape).mul(2).requires_grad_(), random(*shape).add(1)
    product(x, w, 3.0).backward(g)
    assert torch.allclose(x.grad, g * w * 3) and torch.allclose(w.grad, g * x * 3)
    _, pull = jax.vjp(lambda a, b: product(a, b, 3.0), as_jax(x), as_jax(w))
    for ours, expected in zip(pull(as_jax(g)), (x.grad, w.grad), strict=True):
        assert np.allclose(ours, expected.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saved_outputs_against_float64(dtype):
    x, g = random(9, 21).to(dtype).requires_grad_(), random(9, 21).to(dtype)
    y = softmax(x)
    assert y.requires_grad and y.dtype is dtype
    y.backward(g)
    wide = x.detach().double().requires_grad_()
    torch.softmax(wide, -1).backward(g.double())
    tolerance = 1e-6 if dtype is torch.float32 else 2e-2
    assert x.grad.dtype is dtype and torch.allclose(x.grad.double(), wide.grad, atol=tolerance)
    a = jnp.asarray(x.detach().float().numpy()).astype(str(dtype).removeprefix("torch."))
    grad = jax.jit(jax.grad(lambda a: (softmax(a) * jnp.asarray(g.float().numpy()).astype(a.dtype)).sum()))(a)
    assert grad.dtype == a.dtype and np.allclose(grad.astype(jnp.float32), wide.grad.float().numpy(), atol=tolerance)


def test_a_tree_of_arguments_and_of_outputs_with_integers_in_them():
    x, index = random(11).requires_grad_(), torch.arange(11, dtype=torch.int32)
    low, seven, high = nested([x, index])
    (low.sum() + 3 * high.sum()).backward()
    assert seven == 7 and torch.allclose(x.grad, 2 + 3 * index.float())
    grad = jax.grad(lambda a: sum((o * c).sum() for o, c in zip(nested([a, as_jax(index)])[::2], (1, 3), strict=True)))(as_jax(x))
    assert np.allclose(grad, x.grad.numpy())


def test_only_one_of_two_arguments_requires_grad():
    x, w = random(8, 8).requires_grad_(), random(8, 8)
    product(x, w).sum().backward()
    assert torch.allclose(x.grad, w) and w.grad is None
    with torch.no_grad():
        assert not product(x, w).requires_grad
    assert not product(x.detach(), w).requires_grad


def test_a_kernel_without_backward_says_so():
    with pytest.raises(DifferentiationError, match=r"'plain'.*no backward="):
        jax.grad(lambda a: plain(a).sum())(jnp.ones(5))
    with pytest.raises(DifferentiationError, match="no backward="):
        jax.jvp(plain, (jnp.ones(5),), (jnp.ones(5),))
    with pytest.warns(NoGradient, match="plain"):
        assert not plain(torch.ones(6, requires_grad=True)).requires_grad
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with torch.no_grad():
            plain(torch.ones(7, requires_grad=True))


def test_what_a_closure_reaches_has_no_gradient_and_says_so():
    @helion.kernel(backward=lambda g, x, fn: g)
    def apply(x: torch.Tensor, fn) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = fn(x[tile], tile)
        return out

    x, bias = random(12).requires_grad_(), random(12).requires_grad_()
    with pytest.warns(NoGradient, match="bias"):
        apply(x, lambda value, tile: value + bias[tile]).sum().backward()
    assert torch.equal(x.grad, torch.ones(12)) and bias.grad is None
    with pytest.raises(DifferentiationError, match="reached by a callable"):
        jax.grad(lambda b: apply(as_jax(x), lambda value, tile: value + b[tile]).sum())(as_jax(bias))


def test_in_place_and_a_backward_that_returns_too_little_are_refused():
    with pytest.raises(DifferentiationError, match="in place"):
        bump(torch.ones(4, requires_grad=True) * 1, torch.ones(4))
    with pytest.raises(DifferentiationError, match="in place"):
        jax.grad(lambda a: bump(a, a).sum())(jnp.ones(4))
    short = helion.kernel(product.fn, backward=lambda g, x, w, s: g)
    with pytest.raises(DifferentiationError, match="1 gradients for 2"):
        short(torch.ones(3, 3, requires_grad=True), torch.ones(3, 3)).sum().backward()
    with pytest.raises(ConfigError, match="backward="):
        helion.kernel(product.fn, backward=3)


def test_second_use_in_a_graph_and_no_gradient_for_one():
    @helion.kernel(backward=lambda g, x, w: (g, None))
    def add(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size()):
            out[tile] = x[tile] + w[tile]
        return out

    x, w = random(5, 6).requires_grad_(), random(5, 6).requires_grad_()
    add(add(x, w), w).sum().backward()
    assert torch.equal(x.grad, torch.ones(5, 6)) and w.grad is None
    a, b = jax.grad(lambda a, b: add(a, b).sum(), argnums=(0, 1))(as_jax(x), as_jax(w))
    assert np.array_equal(a, np.ones((5, 6))) and not b.any()


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_vmap_over_any_axis(axis):
    x = as_jax(random(3, 5, 21))
    out = jax.jit(jax.vmap(softmax, in_axes=axis))(x)
    assert np.allclose(out, jax.nn.softmax(jnp.moveaxis(x, axis, 0), -1), atol=1e-6)


def test_vmap_of_some_arguments_of_numbers_and_nested():
    x, y = as_jax(random(21, 33)), as_jax(random(3, 33, 17))
    assert np.allclose(jax.vmap(matmul, in_axes=(None, 0))(x, y), jnp.einsum("mk,bkn->bmn", x, y), atol=1e-4)
    twice = jax.vmap(jax.vmap(matmul, in_axes=(None, 0)), in_axes=(0, None))
    assert np.allclose(twice(x[None].repeat(2, 0), y), jnp.einsum("mk,bkn->bmn", x, y)[None].repeat(2, 0), atol=1e-4)
    assert np.allclose(jax.vmap(lambda a: product(a, a, 0.5))(y), y * y * 0.5)
    grads = jax.vmap(jax.grad(lambda a: product(a, a, 0.5).sum()))(y)
    assert np.allclose(grads, y, atol=1e-6)


def test_vmap_in_place():
    @helion.kernel
    def add_to(x: torch.Tensor, y: torch.Tensor) -> None:
        for tile in hl.tile(x.size(0)):
            x[tile] = x[tile] + y[tile]

    many, one = as_jax(random(3, 30)), jnp.ones(30)
    assert np.allclose(jax.vmap(add_to, in_axes=(0, None))(many, one), many + 1)
    assert np.allclose(jax.vmap(add_to, in_axes=(None, 0))(one, many), many + 1)
