"""Pairs, tunable values, printing, and the way out to JAX."""

from __future__ import annotations

import pytest
import torch

import helion_rt
import helion_rt.language as hl
from helion_rt.autotuner import BooleanFragment, EnumFragment, IntegerFragment, PowerOfTwoFragment
from helion_rt.exc import CaptureError, Unsupported

from .inline_functions import centred, polynomial


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def rotate(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        first, second = hl.split(x[tile, :].reshape([tile, x.size(1) // 2, 2]))
        out[tile, :] = hl.join(-second, first).reshape([tile, x.size(1)])
    return out


@pytest.mark.parametrize("rows", [16, 13])
def test_split_and_join(rows: int) -> None:
    x = torch.randn(rows, 12)
    pairs = x.reshape(rows, 6, 2)
    assert torch.equal(rotate(x), torch.stack([-pairs[..., 1], pairs[..., 0]], -1).reshape(rows, 12))


def scaled(x: torch.Tensor) -> torch.Tensor:
    factor = hl.register_tunable("factor", PowerOfTwoFragment(1, 64, 4))
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] * factor
    return out


def test_a_tunable_is_that_of_the_config_or_the_default() -> None:
    x = torch.arange(10.0)
    assert torch.equal(helion_rt.kernel(scaled)(x), x * 4)
    assert torch.equal(helion_rt.kernel(scaled, config=helion_rt.Config(block_sizes=[8], factor=16))(x), x * 16)
    assert torch.equal(helion_rt.kernel(scaled, configs=[helion_rt.Config(block_sizes=[8], factor=2)])(x), x * 2)


def test_a_tunable_that_the_fragment_does_not_allow_is_refused() -> None:
    with pytest.raises(Unsupported, match="factor=3"):
        helion_rt.kernel(scaled, config=helion_rt.Config(block_sizes=[8], factor=3))(torch.zeros(10))


def test_fragments() -> None:
    assert IntegerFragment(2, 9).default() == 2
    assert PowerOfTwoFragment(16, 512, 64).default() == 64
    assert not PowerOfTwoFragment(16, 512).allows(48)
    assert EnumFragment(choices=("a", "b")).default() == "a"
    assert not EnumFragment((1, 2)).allows(True)
    assert BooleanFragment().default() is False
    with pytest.raises(ValueError, match="no power of two"):
        PowerOfTwoFragment(1, 48)


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def elementwise(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        value = x[tile]
        out[tile] = hl.inline_pallas(polynomial, (value, 3.0), value, elementwise=True)
    return out


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def by_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, means = torch.empty_like(x), torch.empty([x.size(0), 1], dtype=x.dtype)
    for tile in hl.tile(x.size(0)):
        value = x[tile, :]
        out[tile, :], means[tile, :] = hl.inline_pallas(centred, (value,), (value, value[:, :1]))
    return out, means


@pytest.mark.parametrize("rows", [16, 13])
def test_an_elementwise_function(rows: int) -> None:
    x = torch.randn(rows)
    torch.testing.assert_close(elementwise(x), x * x * 3 + 1)


def test_a_function_of_whole_tiles() -> None:
    x = torch.randn(16, 12)
    out, means = by_rows(x)
    torch.testing.assert_close(means, x.mean(1, keepdim=True))
    torch.testing.assert_close(out, x - x.mean(1, keepdim=True))
    source = by_rows.to_pallas(x)
    assert f"from {centred.__module__} import centred" in source


def test_a_function_that_cannot_be_imported_is_refused() -> None:
    def local(x):
        return x

    @helion_rt.kernel
    def wrong(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = hl.inline_pallas(local, (x[tile],), x[tile])
        return out

    with pytest.raises(Unsupported, match="no function of a module"):
        wrong(torch.zeros(8))


@helion_rt.kernel(config=helion_rt.Config(block_sizes=[8]))
def printing(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        hl.device_print("tile {of} x", tile.begin, x[tile].sum())
        out[tile] = x[tile] + 1
    return out


def test_device_print(capfd: pytest.CaptureFixture[str]) -> None:
    x = torch.ones(16)
    assert torch.equal(printing(x), x + 1)
    import jax

    jax.effects_barrier()
    said = capfd.readouterr().out
    assert "tile {of} x 0 8.0" in said and "tile {of} x 8 8.0" in said


@pytest.mark.parametrize("name", ["inline_triton", "inline_asm_elementwise", "make_async_remote_copy", "dot_scaled", "breakpoint"])
def test_what_is_not_of_this_language_says_what_to_do(name: str) -> None:
    with pytest.raises(Unsupported, match=name) as caught:
        getattr(hl, name)
    assert caught.value.hint


def test_workers_of_a_persistent_kernel() -> None:
    assert helion_rt.runtime.get_num_sm(None) == 1


def test_register_tunable_takes_a_fragment() -> None:
    @helion_rt.kernel
    def wrong(x: torch.Tensor) -> torch.Tensor:
        hl.register_tunable("k", 3)
        return x

    with pytest.raises(CaptureError, match="a name and a fragment"):
        wrong(torch.zeros(8))
