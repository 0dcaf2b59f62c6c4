"""Captured programs, run by an independent evaluator, give what PyTorch gives."""

from __future__ import annotations

import pathlib
import subprocess
import sys
from typing import Any

import pytest
import torch

import helion_rt.language as hl
from helion_rt.capture import capture, tracer
from helion_rt.program import Program, decode, encode
from helion_rt.program.ir import ArgKind, BlockInfo, Ref, Span, TileIndex, walk
from helion_rt.program.signature import ScalarFact, StaticFact, TensorFact

from . import kernels
from .evaluator import run

ROOT = pathlib.Path(__file__).parents[2]


def fact(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return TensorFact(tuple(value.shape), str(value.dtype).removeprefix("torch."))
    if type(value) in (int, float):
        return ScalarFact(type(value).__name__)
    if isinstance(value, (tuple, list)):
        return tuple(map(fact, value))
    return StaticFact(value if isinstance(value, (bool, str, type(None))) else repr(value))


def program_of(fn: Any, *args: Any) -> Program:
    program = capture(fn, tuple(map(fact, args)), args)
    assert decode(encode(program)) == program
    return program


def arrays(program: Program, args: Any) -> list[Any]:
    def at(path: tuple[Any, ...]) -> Any:
        value = args
        for step in path:
            value = value[step]
        return value

    return [at(p.path) for p in program.array_params]


def check(fn: Any, args: tuple[Any, ...], blocks: tuple[int, ...], expected: Any, tolerance: float = 1e-5) -> Program:
    program = program_of(fn, *args)
    got, _ = run(program, arrays(program, args), blocks)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    return program


def names(program: Program) -> list[str]:
    return [op.name for op in walk(program.host)]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


@pytest.mark.parametrize(("shape", "blocks"), [((24,), (8,)), ((12, 20), (4, 5)), ((4, 6, 8), (2, 3, 8))])
def test_add(shape: tuple[int, ...], blocks: tuple[int, ...]) -> None:
    x, y = rand(*shape), rand(*shape) + 1
    program = check(kernels.add, (x, y), blocks, x + y)
    assert program.blocks == tuple(BlockInfo(None, n) for n in shape)
    assert [op.args[1] for op in walk(program.host) if op.name == "hl.load"] == [tuple(TileIndex(i) for i in range(len(shape)))] * 2
    assert program.outputs == Ref(program.launches[0].results[0])


@pytest.mark.parametrize("fn", [kernels.matmul_dot, kernels.matmul_in_place])
@pytest.mark.parametrize("blocks", [(8, 4, 6), (16, 12, 18)])
def test_matmul(fn: Any, blocks: tuple[int, ...]) -> None:
    x, y = rand(16, 18), rand(18, 12)
    program = check(fn, (x, y), blocks, x @ y)
    (loop,) = [op for op in walk(program.host) if op.name == "hl.loop"]
    assert len(loop.results) == 1 and loop.args[0] == (2,)


def test_matmul_with_epilogue_closure() -> None:
    x, y, bias = rand(16, 18), rand(18, 12), rand(12)

    def epilogue(acc: Any, tile: Any) -> Any:
        return torch.relu(acc + 1)

    check(kernels.matmul, (x, y, epilogue), (8, 4, 6), torch.relu(x @ y + 1))
    with pytest.raises(Exception, match="from outside of the kernel"):
        program_of(kernels.matmul, x, y, lambda acc, tile: acc + bias)


def test_softmax() -> None:
    x = rand(12, 20)
    program = check(kernels.softmax, (x,), (4,), torch.softmax(x, 1))
    (load,) = [op for op in walk(program.host) if op.name == "hl.load"]
    assert load.args[1] == (TileIndex(0), Span())
    program = check(kernels.softmax_two_pass, (x,), (4, 5), torch.softmax(x, 1))
    first, second = [op for op in walk(program.host) if op.name == "hl.loop"]
    assert len(first.results) == 2 and second.results == ()
    assert [a.block for a in program.axes] == [0, 1, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_norm(dtype: torch.dtype) -> None:
    x, w, b = rand(12, 20, dtype=dtype), rand(20, dtype=dtype), rand(20, dtype=dtype) + 1
    expected = torch.nn.functional.layer_norm(x.float(), (20,), w.float(), b.float(), 1e-5).to(dtype)
    program = check(kernels.layer_norm, (x, w, b, 1e-5), (3,), expected, 1e-5 if dtype is torch.float32 else 2e-2)
    assert program.params[3].kind is ArgKind.SCALAR


def test_attention() -> None:
    q, k, v = rand(2, 3, 8, 16), rand(2, 3, 12, 16), rand(2, 3, 12, 16) + 0.5
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    program = check(kernels.attention, (q, k, v), (2, 4, 6), expected)
    (loop,) = [op for op in walk(program.host) if op.name == "hl.loop"]
    assert len(loop.results) == 3


def test_inner_bound_is_the_end_of_the_outer_tile() -> None:
    x = rand(24)
    program = check(kernels.causal_sums, (x,), (8, 4), torch.cumsum(x, 0))
    assert program.axes[1].limit == 24 and isinstance(program.axes[1].end, Ref)


def test_outputs_and_scalars() -> None:
    x = rand(8, 6)
    program = check(kernels.two_outputs, (x, 3.0), (4,), (x * 3.0, (x.amin(-1), 8)))
    assert [p.kind for p in program.params] == [ArgKind.TENSOR, ArgKind.SCALAR]


def test_grid() -> None:
    x = rand(5, 8)
    program = check(kernels.rms_by_rows, (x,), (), x * torch.rsqrt((x * x).mean(1, keepdim=True) + 1e-6))
    assert program.axes[0].is_grid and program.blocks[0].fixed == 1 and program.tunable_blocks == ()


def test_python_loops_are_unrolled_and_the_scalar_they_need_becomes_static() -> None:
    x = rand(16)
    program = check(kernels.unrolled, (x, 5), (8,), ((x * 2 * 2 + 1) * 2 + 2) + 1)
    assert program.params[1].kind is ArgKind.STATIC and program.params[1].static == 5


def test_stores_through_views_reach_the_base() -> None:
    x = rand(6, 4)
    check(kernels.gelu, (x,), (8,), torch.nn.functional.gelu(x))

    def transposed(x):
        out = torch.zeros_like(x)
        view = out.t()
        other = out.view(-1)
        for i, j in hl.tile(view.size()):
            view[i, j] = x.t()[i, j] + 1
        return out, other

    check(transposed, (x,), (2, 3), (x + 1, (x + 1).reshape(-1)))

    def sliced(x):
        out = torch.zeros_like(x)
        for tile in hl.tile(2):
            out[2:4][tile, :] = x[tile, :]
        return out

    expected = torch.zeros_like(x)
    expected[2:4] = x[:2]
    with pytest.raises(Exception, match="already a tile"):
        program_of(sliced, x)

    def sliced_before(x):
        out = torch.zeros_like(x)
        part = out[2:4]
        for tile in hl.tile(2):
            part[tile, :] = x[tile, :]
        return out

    check(sliced_before, (x,), (1,), expected)


def test_arguments_written_in_place() -> None:
    x = rand(8)
    program = program_of(kernels.scale_in_place, x, 2.0)
    result, mutated = run(program, [x, 2.0], (4,))
    assert result is None and [i for i, _ in program.mutated] == [0]
    torch.testing.assert_close(mutated[0], x * 2)


def test_gather_and_positions() -> None:
    table, index = rand(10, 6), torch.tensor([3, 1, 4, 1, 5, 9, 2, 6])

    def gather(table, index):
        out = torch.empty([index.size(0), table.size(1)], dtype=table.dtype)
        for tile in hl.tile(index.size(0)):
            out[tile, :] = table[index[tile], :] + tile.index[:, None] + tile.id
        return out

    position = torch.arange(8)
    check(gather, (table, index), (4,), table[index] + position[:, None] + (position // 4)[:, None])

    def shifted(x):
        out = torch.empty([8], dtype=x.dtype)
        for tile in hl.tile(8):
            out[tile.index] = x[tile.index + 2] * tile.begin
        return out

    x = rand(10)
    program = check(shifted, (x,), (4,), x[2:] * (position // 4 * 4))
    (store,) = [op for op in walk(program.host) if op.name == "hl.store"]
    assert store.args[1] == (TileIndex(0),)


def test_number_becomes_a_carried_scalar() -> None:
    x = rand(12, 8)

    def sums(x):
        out = torch.empty([x.size(0)], dtype=x.dtype)
        for i in hl.grid(x.size(0)):
            total, count = 0.0, 0
            for tile in hl.tile(x.size(1)):
                total = total + x[i, tile].sum()
                count += 1
            out[i] = total / count
        return out

    check(sums, (x,), (4,), x.sum(1) / 2)


def test_lists_of_tensors_and_keyword_only() -> None:
    x, y = rand(8), rand(8) + 1

    def summed(parts, *, factor: float):
        out = torch.empty_like(parts[0])
        for tile in hl.tile(out.size(0)):
            acc = hl.zeros([tile])
            for part in parts:
                acc = acc + part[tile]
            out[tile] = acc * factor
        return out

    program = check(summed, ([x, y], 2.0), (4,), (x + y) * 2)
    assert [p.path for p in program.params] == [(0, 0), (0, 1), (1,)]


def test_values_of_block_sizes() -> None:
    x = rand(16, 4)

    def by_block(x):
        block = hl.register_block_size(16)
        partial = torch.zeros_like(x)
        for tile in hl.tile(16, block_size=block):
            rows = x[tile, :]
            partial[tile, :] = rows.reshape(tile.block_size * 4).view(tile, 4) / tile.block_size + rows.numel()
        return partial

    check(by_block, (x,), (8,), x / 8 + 32)


def test_a_hint_never_leaks_into_the_program() -> None:
    def leak(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = x[tile] + x[tile][1:].sum()
        return out

    with pytest.raises(Exception, match="block size"):
        program_of(leak, rand(8))


def test_ragged_and_fixed_blocks() -> None:
    def fixed(x):
        out = torch.empty_like(x)
        for a, b in hl.tile([x.size(0), x.size(1)], block_size=[4, None]):
            out[a, b] = x[a, b] + hl.zeros([a, b])
        return out

    x = rand(8, 6)
    program = check(fixed, (x,), (3,), x)
    assert [b.fixed for b in program.blocks] == [4, None]
    assert program.type_of(program.launches[0].regions[0].ops[0].results[0]).shape[0] == 4


def test_decomposition_of_what_the_lowering_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    known = tracer._supported
    monkeypatch.setattr(tracer, "_supported", lambda name: name != "aten.silu.default" and known(name))

    def silu(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = torch.nn.functional.silu(x[tile])
        return out

    x = rand(8)
    program = check(silu, (x,), (4,), torch.nn.functional.silu(x))
    assert "aten.silu.default" not in names(program)


def test_common_kernels_import_neither_dynamo_nor_sympy() -> None:
    code = (
        "import sys, torch; from tests.capture import kernels, test_capture as t;"
        "r = t.rand; [t.program_of(*c) for c in ((kernels.softmax, r(8, 6)), (kernels.softmax_two_pass, r(8, 6)),"
        "(kernels.matmul_dot, r(8, 6), r(6, 4)), (kernels.layer_norm, r(8, 6), r(6), r(6), 1e-5), (kernels.attention, *[r(2, 8, 4)] * 3))];"
        "print([m for m in ('torch._dynamo', 'sympy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


def test_shared_names_of_one_tensor_follow_in_place_changes() -> None:
    def kernel(x):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            acc = hl.zeros([tile])
            alias = acc
            for inner in hl.tile(x.size(0)):
                acc += x[inner].sum()
            out[tile] = alias + acc
        return out

    x = rand(8)
    check(kernel, (x,), (4, 2), (x.sum() * 2).expand(8))

    def stale(x):
        for tile in hl.tile(x.size(0)):
            acc = hl.zeros([tile])
            alias = acc
            for inner in hl.tile(x.size(0)):
                acc += x[inner].sum() + alias
            x[tile] = acc

    with pytest.raises(Exception, match="changed in place while another name"):
        program_of(stale, x)


def test_zero_rows_and_inference_mode() -> None:
    with torch.inference_mode():
        program = program_of(kernels.softmax, torch.zeros(0, 4))
    assert program.blocks == (BlockInfo(None, 0),) and program.type_of(program.outputs).shape == (0, 4)


def test_scalar_conditions_and_helpers() -> None:
    def doubled(v: Any) -> Any:
        return v * 2

    def kernel(x, flag: float, name: str):
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            v = doubled(x[tile])
            if flag > 1 and name == "plus":
                v = v + flag
            out[tile] = v
        return out

    x = rand(8)
    program = check(kernel, (x, 3.0, "plus"), (4,), x * 2 + 3)
    assert [p.static for p in program.params[1:]] == [3.0, "plus"]


def test_a_transposed_argument_and_a_dtype_argument() -> None:
    def kernel(x, dtype):
        out = torch.empty([x.size(1), x.size(0)], dtype=dtype)
        turned = x.T
        for a, b in hl.tile(out.size()):
            out[a, b] = turned[a, b]
        return out

    x = rand(4, 6)
    check(kernel, (x, torch.bfloat16), (3, 2), x.T.to(torch.bfloat16), 1e-2)
