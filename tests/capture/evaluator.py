"""A small evaluator of programs in eager PyTorch, for tests: every tile in order, no masks (blocks must divide extents)."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from helion_rt.program.expr import BinExpr, Block, evaluate
from helion_rt.program.ir import BOUNDS, DType, Op, Program, Ref, Region, Span, TileIndex

COMBINE = {
    "add": torch.add, "max": torch.maximum, "min": torch.minimum, "and": torch.bitwise_and, "or": torch.bitwise_or,
    "xor": torch.bitwise_xor, "xchg": lambda a, b: b,
}  # fmt: skip


def run(program: Program, args: list[Any], blocks: list[int] | tuple[int, ...] = ()) -> tuple[Any, list[torch.Tensor]]:
    """(what the kernel returns, new contents of its mutated arguments) for arrays of the TENSOR and SCALAR params."""
    return _Run(program, program.block_sizes(tuple(blocks))).run(args)


class _Run:
    def __init__(self, program: Program, sizes: tuple[int, ...]) -> None:
        self.program, self.sizes = program, sizes
        self.env: dict[int, Any] = {}
        self.at: dict[int, tuple[int, int]] = {}  # axis -> (begin of the tile, number of the tile)
        self.contents: dict[int, torch.Tensor] = {}  # tensors being written by the current launch

    def run(self, args: list[Any]) -> tuple[Any, list[torch.Tensor]]:
        for param, arg in zip(self.program.array_params, args, strict=True):
            assert param.value is not None
            kind = self.program.type_of(param.value)
            value = torch.as_tensor(arg, dtype=getattr(torch, kind.dtype))
            assert tuple(value.shape) == kind.shape
            self.env[param.value] = value.clone()
        self.region(self.program.host)
        return self.value(self.program.outputs), [self.env[r.id] for _, r in self.program.mutated]

    def value(self, arg: Any) -> Any:
        if isinstance(arg, Ref):
            return self.env[arg.id]
        if isinstance(arg, DType):
            return getattr(torch, arg.name)
        if isinstance(arg, (Block, BinExpr)):
            return evaluate(arg, self.sizes)
        return tuple(self.value(a) for a in arg) if isinstance(arg, tuple) else arg

    def region(self, region: Region) -> Any:
        for op in region.ops:
            results = self.op(op)
            results = results if isinstance(results, (tuple, list)) else (results,) if op.results else ()
            assert len(results) == len(op.results), op.name
            for id_, result in zip(op.results, results, strict=True):
                kind = self.program.types[id_]
                assert tuple(result.shape) == tuple(evaluate(d, self.sizes) for d in kind.shape), (op, result.shape)
                assert str(result.dtype) == f"torch.{kind.dtype}", (op, result.dtype)
                self.env[id_] = result
        return self.value(region.results)

    def op(self, op: Op) -> Any:
        special = getattr(self, "do_" + op.name.removeprefix("hl."), None) if op.name.startswith("hl.") else None
        if special is not None:
            return special(op)
        space, base, overload = op.name.split(".")
        assert space == "aten"
        func = getattr(getattr(torch.ops.aten, base), overload)
        return func(*self.value(op.args), **{k: self.value(v) for k, v in op.kwargs if k not in BOUNDS})

    def steps(self, axes: tuple[int, ...]) -> Any:
        ranges = []
        for axis in axes:
            info = self.program.axes[axis]
            begin, end = int(self.value(info.begin)), int(self.value(info.end))
            assert info.limit is None or end <= info.limit
            size = self.sizes[info.block]
            assert max(0, end - begin) % size == 0, "blocks must divide extents"
            ranges.append(range(begin, end, size))
        for point in itertools.product(*ranges):
            for axis, begin, steps in zip(axes, point, ranges, strict=True):
                self.at[axis] = (begin, (begin - steps.start) // steps.step)
            yield

    def do_launch(self, op: Op) -> Any:
        axes, writes = op.args
        self.contents = {r.id: self.env[r.id].clone() for r in writes}
        for _ in self.steps(axes):
            self.region(op.regions[0])
        results = [self.contents[r.id] for r in writes]
        self.contents = {}
        return results

    def do_loop(self, op: Op) -> Any:
        axes, inits = op.args
        region, carried = op.regions[0], self.value(inits)
        for _ in self.steps(axes):
            self.env.update(zip(region.params, carried, strict=True))
            carried = self.region(region)
        return carried

    def do_if(self, op: Op) -> Any:
        condition, inits = self.value(op.args)
        assert condition.dtype is torch.bool and condition.dim() == 0
        region = op.regions[0 if condition else 1]
        self.env.update(zip(region.params, inits, strict=True))
        return self.region(region)

    def do_while(self, op: Op) -> Any:
        (carried,) = self.value(op.args)
        test, body = op.regions
        while True:
            self.env.update(zip(test.params, carried, strict=True))
            (again,) = self.region(test)
            assert again.dtype is torch.bool and again.dim() == 0
            if not again:
                return carried
            self.env.update(zip(body.params, carried, strict=True))
            carried = self.region(body)

    def index(self, tensor: torch.Tensor, index: Any) -> tuple[Any, ...]:
        """The index for PyTorch. Positions outside of the tensor are moved into it: masks must make them harmless."""

        def one(item: Any, size: int) -> Any:
            if isinstance(item, TileIndex):
                begin = self.at[item.axis][0]
                return slice(begin, begin + self.sizes[self.program.axes[item.axis].block])
            if isinstance(item, Span):
                return slice(self.value(item.start), self.value(item.stop), item.step)
            value = self.value(item)
            if not isinstance(value, torch.Tensor):
                return value
            return int(value) if value.dim() == 0 else value.long().clamp(-size, size - 1)

        sizes = iter(tensor.shape)
        return tuple(None if item is None else one(item, next(sizes)) for item in index)

    def placed(self, tensor: torch.Tensor, index: Any) -> torch.Tensor:
        """The positions that ``index`` selects in the flattened tensor, where the program has the dimensions of index tensors."""
        positions = torch.arange(tensor.numel()).view(tensor.shape)
        selected = self.index(tensor, index)
        gathered = [i for i, item in enumerate(selected) if isinstance(item, torch.Tensor)]
        if not gathered or gathered == list(range(gathered[0], gathered[-1] + 1)):
            return positions[selected]
        rank = torch.broadcast_shapes(*(selected[i].shape for i in gathered)).__len__()
        before = sum(not isinstance(item, int) for item in selected[: gathered[0]])
        result = positions[selected]  # PyTorch puts them first
        order = [*range(rank, rank + before), *range(rank), *range(rank + before, result.dim())]
        return result.permute(order)

    def tensor(self, ref: Ref) -> torch.Tensor:
        return self.contents[ref.id] if ref.id in self.contents else self.env[ref.id]

    def do_load(self, op: Op) -> Any:
        ref, index, *mask = op.args
        tensor = self.tensor(ref)
        result = tensor.reshape(-1)[self.placed(tensor, index)]
        return torch.where(self.value(mask[0]), result, torch.zeros((), dtype=result.dtype)) if mask else result

    def do_store(self, op: Op) -> Any:
        ref, index, value, *mask = op.args
        contents = self.contents[ref.id]
        self.write(contents, self.placed(contents, index), self.value(value), self.value(mask[0]) if mask else True)

    def write(self, tensor: torch.Tensor, at: torch.Tensor, value: Any, mask: Any) -> None:
        keep = torch.as_tensor(mask).expand(at.shape)
        flat = tensor.flatten().clone()
        flat[at[keep]] = torch.as_tensor(value, dtype=tensor.dtype).expand(at.shape)[keep]
        tensor.copy_(flat.view(tensor.shape))

    def do_atomic(self, op: Op) -> Any:
        kind, ref, index, *rest = op.args
        value, mask, expected = [*(self.value(r) for r in rest), None][:3]
        tensor = self.contents[ref.id]
        at = self.placed(tensor, index)
        old = tensor.reshape(-1)[at].clone()
        value = torch.as_tensor(value, dtype=tensor.dtype).expand(at.shape)
        keep = torch.as_tensor(True if mask is None else mask).expand(at.shape)
        flat = tensor.flatten().clone()
        wanted = torch.as_tensor(0 if expected is None else expected).expand(at.shape)
        each = zip(at.flatten().tolist(), value.flatten(), keep.flatten().tolist(), wanted.flatten(), strict=True)
        for position, item, on, want in each:
            if on and kind == "cas":
                flat[position] = item if flat[position] == want else flat[position]
            elif on:
                flat[position] = COMBINE[kind](flat[position], item)
        tensor.copy_(flat.view(tensor.shape))
        return old

    def do_tile_index(self, op: Op) -> Any:
        axis = op.args[0]
        return torch.arange(self.sizes[self.program.axes[axis].block], dtype=torch.int32) + self.at[axis][0]

    def do_tile_begin(self, op: Op) -> Any:
        return torch.tensor(self.at[op.args[0]][0], dtype=torch.int32)

    def do_tile_end(self, op: Op) -> Any:
        axis = op.args[0]
        return torch.tensor(self.at[axis][0] + self.sizes[self.program.axes[axis].block], dtype=torch.int32)

    def do_tile_id(self, op: Op) -> Any:
        return torch.tensor(self.at[op.args[0]][1], dtype=torch.int32)

    def do_dot(self, op: Op) -> Any:
        a, b, acc, dtype = self.value(op.args)
        wide = torch.int32 if not a.dtype.is_floating_point else torch.float32
        result = a.to(wide) @ b.to(wide)
        return (result if acc is None else result + acc).to(dtype)
