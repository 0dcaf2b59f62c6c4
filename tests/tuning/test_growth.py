"""Where a TPU's default begins: tiles neither so small that steps cost more than their work, nor so large that they compile for minutes."""

from __future__ import annotations

import inspect

import pytest
import torch

import helion_rt.language as hl
from helion_rt import kernels, lowering, targets
from helion_rt.capture import capture
from helion_rt.program.ir import Program
from helion_rt.program.signature import StaticFact, TensorFact
from helion_rt.tuning.space import Space


def _add(x, y):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + y[tile]
    return out


def _numbered(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.where(tile.index % 3 == 0, x[tile], 0.0)
    return out


def _gather(x, ids):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[ids[tile]]
    return out


def _cumulative(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.cumsum(x[tile], 0)
    return out


def _counted(x, out):
    for tile in hl.tile(x.size(0)):
        hl.atomic_add(out, [0], x[tile].sum(0))


def _row_sums(x):
    out = torch.empty([x.size(0)], dtype=x.dtype, device=x.device)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile, :].sum(-1)
    return out


def _program(fn, *shapes, dtypes=("float32", "float32", "float32")) -> Program:
    rest = [p.default for p in list(inspect.signature(fn).parameters.values())[len(shapes) :]]
    facts = tuple(TensorFact(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=False))
    return capture(fn, (*facts, *map(StaticFact, rest)), (*(None for _ in shapes), *rest))


N = 1 << 20


@pytest.mark.parametrize("target", targets.TPU_NAMES)
@pytest.mark.parametrize(
    ("program", "blocks"),
    [
        pytest.param(_program(_add, (N,), (N,)), [1 << 18], id="folded"),
        pytest.param(_program(_add, (N - 8,), (N - 8,)), [8192], id="rows of lanes"),
        pytest.param(_program(_numbered, (N,)), [8192], id="not folded"),
        pytest.param(_program(_gather, (N,), (N,), dtypes=("float32", "int32")), [512], id="gather"),
        pytest.param(_program(_cumulative, (N,)), [512], id="scan"),
        pytest.param(_program(_counted, (N,), (1,)), [512], id="atomic"),
        pytest.param(_program(kernels.add.fn, (16, 4096), (16, 4096)), [16, 4096], id="few rows"),
        pytest.param(_program(kernels.add.fn, (2048, 8192), (2048, 8192)), [512, 512], id="large"),
        pytest.param(_program(kernels.rms_norm.fn, (N, 128), (128,)), [2048], id="many heads"),
        pytest.param(_program(kernels.rms_norm.fn, (4096, 128), (128,)), [1024], id="steps are left"),
        pytest.param(_program(kernels.softmax.fn, (N, 8)), [512], id="narrow"),
        pytest.param(_program(kernels.softmax_two_pass.fn, (16, N)), [16, 16384, 16384], id="loops"),
        pytest.param(_program(kernels.matmul.fn, (4096, 4096), (4096, 4096), dtypes=("bfloat16",) * 2), [512, 512, 512], id="matmul"),
        pytest.param(_program(_row_sums, (4096, 256)), [1024], id="row sums"),
    ],
)
def test_the_blocks_of_the_default(program: Program, blocks: list[int], target: str) -> None:
    aimed = targets.get(target)
    default = Space(program, aimed).default()
    assert default["block_sizes"] == blocks
    assert lowering.make_plan(program, default, aimed).vmem_bytes <= (aimed.vmem_bytes or 0) // 2


def test_the_cpu_begins_with_whole_tensors() -> None:
    assert Space(_program(_add, (N,), (N,)), targets.get("cpu")).default()["block_sizes"] == [N]


def _jagged_means(x, offsets, counts):
    """With one row a tile ``out`` is sliced along both of its last dimensions, which is refused when it is written."""
    rows_of, width, flat = counts.size(0), x.size(1), x.view(-1)
    out = torch.zeros([rows_of, width], dtype=x.dtype, device=x.device)
    for rows in hl.tile(rows_of):
        starts = offsets[rows]
        lengths = offsets[rows.index + 1] - starts
        for columns in hl.jagged_tile(counts[rows]):
            sums = hl.zeros([rows, columns], dtype=x.dtype)
            for k in hl.jagged_tile(lengths):
                at = (starts[:, None] + k.index[None, :])[:, :, None] * width + columns.index[None, None, :]
                sums = sums + hl.load(flat, [at]).sum(dim=1)
            each = lengths.to(x.dtype)[:, None]
            out[rows, columns] = torch.where(each > 0, sums / each, 0.0)
    return out


def test_a_default_can_be_written() -> None:
    program = _program(_jagged_means, (208, 64), (9,), (8,), dtypes=("float32", "int32", "int32"))
    for name in ("v5e", "tpu7x"):
        default = Space(program, targets.get(name)).default()
        assert lowering.generate(program, default, targets.get(name))
