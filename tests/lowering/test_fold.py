"""Vectors on TPUs: folded into matrices where all is elementwise, and shown as they are where they are only read."""

from __future__ import annotations

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch

import helion_rt.language as hl
from helion_rt import lowering, targets
from helion_rt.capture import capture
from helion_rt.config import Config
from helion_rt.lowering.knobs import canonical
from helion_rt.program.ir import Program
from helion_rt.program.signature import TensorFact

TPU = targets.get("tpu7x")
DTYPES = ("float32", "bfloat16", "int32", "int8")


def _scaled(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results, one of another dtype, and a condition."""
    out, larger = torch.empty_like(x), torch.empty(x.size(), dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0)):
        a, b = x[tile], y[tile]
        out[tile] = torch.where(a > b, a - b, a + b)
        larger[tile] = (a > b).to(torch.int32)
    return out, larger


def _in_place(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The second launch is no elementwise one."""
    total = torch.zeros([1], dtype=torch.float32, device=x.device)
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] * 2 + y[tile]
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(total, [0], x[tile].to(torch.float32).sum(0))
    return total


def _numbered(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.where(tile.index < 100, x[tile], y[tile])
    return out


def _part(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0) // 2):
        out[tile] = x[tile] + y[tile]
    return out


def _block_is_a_number(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The second launch computes with the size of the first one's block."""
    block = hl.register_block_size(x.size(0))
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=block):
        x[tile] = x[tile] + y[tile]
    for tile in hl.tile(x.size(0)):
        out[tile] = y[tile] * block
    return out


def _block_is_an_end(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    block = hl.register_block_size(x.size(0))
    out = torch.zeros_like(x)
    for tile in hl.tile(x.size(0), block_size=block):
        x[tile] = x[tile] + y[tile]
    for tile in hl.tile(0, block, block_size=128):
        out[tile] = y[tile] * 1024
    return out


def _block_is_a_keyword(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    block = hl.register_block_size(x.size(0))
    for tile in hl.tile(x.size(0), block_size=block):
        x[tile] = x[tile] + y[tile]
    return torch.add(y, y, alpha=block)


def _fixed(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out, larger = torch.empty_like(x), torch.empty(x.size(), dtype=torch.int32, device=x.device)
    for tile in hl.tile(x.size(0), block_size=2048):
        a, b = x[tile], y[tile]
        out[tile] = torch.where(a > b, a - b, a + b)
        larger[tile] = (a > b).to(torch.int32)
    return out, larger


def _counts_tiles(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The size of the block is the length of a tensor of the host part."""
    block = hl.register_block_size(x.size(0))
    out, ones = torch.empty_like(x), torch.empty([(x.size(0) + block - 1) // block, 8, 128], device=x.device)
    for tile in hl.tile(x.size(0), block_size=block):
        out[tile] = x[tile] + y[tile]
    for tile in hl.grid(ones.size(0)):
        ones[tile, :, :] = hl.full([8, 128], 1.0, dtype=torch.float32)
    return out, ones


def _add_bias(x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(x.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] + bias[tile_n]
    return out


def _scale_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * weight[None, :]
    return out


def _half_of_it(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """What is loaded is not all of the tensor."""
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] * weight[128:256][None, :]
    return out


def _program(fn, *shapes: tuple[int, ...], dtype: str = "float32") -> Program:
    return capture(fn, tuple(TensorFact(shape, dtype) for shape in shapes))


def _values(seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    return np.random.default_rng(seed).integers(-20, 20, shape).astype(getattr(ml_dtypes, dtype, dtype))


def _interpret(program: Program, config: Config, *arrays: np.ndarray) -> list[np.ndarray]:
    return [np.asarray(a, np.float64) for a in lowering.lower(program, config, TPU).interpret(*map(jnp.asarray, arrays))]


# ------------------------------------------------------------------------------------------------ folded


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("fn", "n", "block"),
    [(_scaled, 8192, 4096), (_scaled, 128 * 77, 4096), (_scaled, 384, 384), (_scaled, 128 * 5, 128), (_fixed, 128 * 35, None)],
    ids=["round", "ragged", "whole", "not folded", "fixed"],
)
def test_folded_vectors_have_the_right_numbers(fn, n: int, block: int | None, dtype: str) -> None:
    program, config = _program(fn, (n,), (n,), dtype=dtype), Config(**({"block_sizes": [block]} if block else {}))
    x, y = (_values(seed, (n,), dtype) for seed in (1, 2))
    a, b = (v.astype(np.float64) for v in (x, y))
    out, larger = _interpret(program, config, x, y)
    np.testing.assert_array_equal(out, np.where(a > b, a - b, a + b))
    np.testing.assert_array_equal(larger, a > b)
    folds = block != 128 and not (fn is _fixed and dtype == "int8")  # 2048 bytes are no whole register
    assert (f"({n // 128}, 128)" in lowering.generate(program, config, TPU)) is folds


def test_what_is_written_in_place_is_folded_beside_a_launch_that_is_not() -> None:
    program, config = _program(_in_place, (2432,), (2432,)), Config(block_sizes=[1024, 2432])
    x, y = (_values(seed, (2432,), "float32") for seed in (1, 2))
    source = lowering.generate(program, config, TPU)
    assert "pl.BlockSpec((8, 128,)" in source and "pl.BlockSpec((2432,)" in source
    total, new = _interpret(program, config, x, y)
    np.testing.assert_array_equal(new, x * 2 + y)
    np.testing.assert_array_equal(total, [new.sum()])


@pytest.mark.parametrize(
    ("fn", "blocks", "expected"),
    [
        (_block_is_a_number, [1024, 512], lambda y: y * 1024),
        (_block_is_an_end, [1024], lambda y: y * 1024 * (np.arange(len(y)) < 1024)),
        (_block_is_a_keyword, [1024], lambda y: y * 1025),
    ],
)
def test_a_block_whose_size_is_a_number_elsewhere_stays(fn, blocks: list[int], expected) -> None:
    x, y = (_values(seed, (4096,), "float32") for seed in (1, 2))
    out, new = _interpret(_program(fn, (4096,), (4096,)), Config(block_sizes=blocks), x, y)
    np.testing.assert_array_equal(out, expected(y.astype(np.float64)))
    np.testing.assert_array_equal(new, x + y)


def test_buffer_counts_are_for_the_vectors_that_are_folded() -> None:
    program, config = _program(_scaled, (8192,), (8192,)), Config(block_sizes=[1024], buffer_counts=[1, None, 1])
    assert canonical(program, config, TPU) == config
    assert [o.buffers for o in lowering.make_plan(program, config, TPU).launches[0].operands] == [1, 2, 1, 2]
    assert lowering.generate(program, config, TPU).count("pl.Buffered(1)") == 2


@pytest.mark.parametrize(
    ("fn", "n", "blocks"),
    [
        (_scaled, 1000, [1000]),  # 128 does not divide it
        (_scaled, 8192, [512]),  # not whole registers
        (_numbered, 8192, [1024]),
        (_part, 8192, [1024]),
        (_counts_tiles, 8192, [1024]),
    ],
    ids=["length", "block", "index", "part", "used"],
)
def test_what_cannot_be_folded_is_as_it_was(fn, n: int, blocks: list[int]) -> None:
    source = lowering.generate(_program(fn, (n,), (n,)), Config(block_sizes=blocks), TPU)
    assert f"({n // 128}, 128)" not in source and f"(1, {n})" in source


def test_only_tpus_have_vectors_folded_and_the_config_stays() -> None:
    program, config = _program(_scaled, (8192,), (8192,)), Config(block_sizes=[2048])
    assert canonical(program, config, TPU) == config
    assert ", 128)" not in lowering.generate(program, config, targets.get("cpu"))
    assert lowering.make_plan(program, config, TPU).launches[0].trips == (4,)


@pytest.mark.parametrize(("dtype", "unit"), [("float32", 1024), ("bfloat16", 2048), ("int8", 4096)])
def test_whole_registers_are_folded(dtype: str, unit: int) -> None:
    """Of what is packed two and four times as many rows fill a register; with an int32 beside it, too."""
    program = _program(_scaled, (16384,), (16384,), dtype=dtype)
    folds = [n for n in (512, 1024, 2048, 4096) if "(128, 128)" in lowering.generate(program, Config(block_sizes=[n]), TPU)]
    assert folds == [n for n in (1024, 2048, 4096) if n >= unit]


@pytest.mark.slow
@pytest.mark.parametrize("target", targets.TPU_NAMES)
@pytest.mark.parametrize("dtype", DTYPES[:-1])  # Mosaic does not compare bytes
@pytest.mark.parametrize(("n", "block"), [(8192, 4096), (128 * 77, 4096), (384, 384)], ids=["round", "ragged", "whole"])
def test_folded_vectors_compile(n: int, block: int, dtype: str, target: str) -> None:
    program = _program(_scaled, (n,), (n,), dtype=dtype)
    compiled = lowering.lower(program, Config(block_sizes=[block]), targets.get(target)).compile()
    assert compiled.tpu_custom_calls == 1


# ------------------------------------------------------------------------------------------------ flat


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "block"), [(1024, 512), (1000, 512), (1000, 1000), (100, 100)])
def test_a_vector_that_is_only_read_keeps_its_rank(columns: int, block: int, dtype: str) -> None:
    program, config = _program(_add_bias, (24, columns), (columns,), dtype=dtype), Config(block_sizes=[8, block])
    x, bias = _values(1, (24, columns), dtype), _values(2, (columns,), dtype)
    assert f"pl.BlockSpec(({block},), lambda i0, i1: (i1,)" in lowering.generate(program, config, TPU)
    (out,) = _interpret(program, config, x, bias)
    np.testing.assert_array_equal(out, x.astype(np.float64) + bias.astype(np.float64))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_whole_vector_keeps_its_rank(dtype: str) -> None:
    program, config = _program(_scale_rows, (24, 200), (200,), dtype=dtype), Config(block_sizes=[8])
    assert "pl.BlockSpec((200,), lambda i0: (0,)" in lowering.generate(program, config, TPU)
    x, weight = _values(1, (24, 200), dtype) // 8, _values(2, (200,), dtype) // 8
    (out,) = _interpret(program, config, x.astype(weight.dtype), weight)
    np.testing.assert_array_equal(out, x.astype(np.float64) * weight.astype(np.float64))


@pytest.mark.parametrize(
    ("fn", "shapes", "blocks", "dtype"),
    [
        (_half_of_it, ((24, 128), (256,)), [8], "float32"),
        (_add_bias, ((24, 1024), (1024,)), [8, 128], "bfloat16"),  # half of a tile of a vector of 16-bit elements
        (_add_bias, ((24, 1024), (1024,)), [8, 256], "int8"),
        (_add_bias, ((24, 1536), (1536,)), [8, 384], "float32"),  # neither a power of two nor a multiple of 1024
    ],
    ids=["slice", "bfloat16", "int8", "384"],
)
def test_other_vectors_are_rows(fn, shapes, blocks: list[int], dtype: str) -> None:
    source = lowering.generate(_program(fn, *shapes, dtype=dtype), Config(block_sizes=blocks), TPU)
    assert f"reshape((1, {shapes[1][0]}))" in source


@pytest.mark.slow
@pytest.mark.parametrize("target", ["v5e", "tpu7x"])
@pytest.mark.parametrize("block", [384, 640, 768, 1280, 1536])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_of_odd_sizes_compile(dtype: str, block: int, target: str) -> None:
    facts = TensorFact((64, 4096), "float32"), TensorFact((4096,), dtype)
    assert lowering.lower(capture(_add_bias, facts), Config(block_sizes=[32, block]), targets.get(target)).compile().tpu_custom_calls == 1


@pytest.mark.slow
@pytest.mark.parametrize("target", targets.TPU_NAMES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("columns", "block"), [(4096, 512), (1000, 512), (1000, 1000), (100, 100), (6144, 3072)])
def test_flat_vectors_compile(columns: int, block: int, dtype: str, target: str) -> None:
    facts = TensorFact((64, columns), "float32"), TensorFact((columns,), dtype)
    for fn, blocks in ((_add_bias, [32, block]), (_scale_rows, [32])):
        lowered = lowering.lower(capture(fn, facts), Config(block_sizes=blocks), targets.get(target))
        assert "reshape((1, " not in lowered.source.split("pallas_call(")[-1]
        assert lowered.compile().tpu_custom_calls == 1
