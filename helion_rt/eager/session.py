"""The language on real tensors: what ``hl.<name>`` does while a kernel runs eagerly (the protocol is ``language._active.Tracer``)."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import torch

from ..config import Config
from ..exc import DTypeError, HelionError, ShapeMismatch, Unsupported
from . import indexing, rng
from .tiles import EagerTile, Range, as_value, tiles_of

_WIDE_BLOCK = 64  # the most elements of a block that nobody chose
_BLOCK = 32  # where no block of 8 to 64 divides the extent


def _plainly(method: Callable[..., Any]) -> Callable[..., Any]:
    """``method`` of a session, in which torch is torch; errors get the line of the kernel."""

    @functools.wraps(method)
    def call(self: Session, *args: Any, **kwargs: Any) -> Any:
        try:
            with torch._C.DisableTorchFunction():
                return method(self, *args, **kwargs)
        except HelionError as error:
            raise error if error.line else self.placed(error) from error.__cause__

    return call


class Session:
    """One eager run of one kernel."""

    def __init__(self, fn: Callable[..., Any], config: Config | None) -> None:
        self._code = inspect.unwrap(fn).__code__
        self._name = fn.__name__
        chosen = config.to_dict() if config is not None else {}
        self._blocks: list[int] = list(chosen.get("block_sizes", ()))
        self._tunables = chosen
        self._sites: dict[Any, list[int]] = {}  # the blocks that a place in the source made, so that it makes them once
        self._made = 0
        self.active: list[tuple[EagerTile, ...]] = []  # the tiles of the loops that we are in
        # Rows of different lengths have no rectangle: their parents go one by one.
        self._one_by_one = "jagged_tile" in self._code.co_names

    @property
    def in_device(self) -> bool:
        return bool(self.active)

    def placed(self, error: HelionError) -> HelionError:
        return type(error)(error.message, kernel=self._name, file=self._code.co_filename, line=self._line(), hint=error.hint)

    def refuse(self, message: str, hint: str | None = None) -> NoReturn:
        raise Unsupported(message, kernel=self._name, file=self._code.co_filename, line=self._line(), hint=hint)

    def _user_frame(self) -> Any:
        frame = sys._getframe(1)
        while frame is not None and frame.f_code is not self._code:
            frame = frame.f_back
        return frame

    def _line(self) -> int:
        frame = self._user_frame()
        return frame.f_lineno if frame is not None else self._code.co_firstlineno

    # Loops.

    @_plainly
    def tile(self, begin: Any, end: Any, block_size: Any) -> Iterator[Any]:
        begins, ends, sizes, single = self._bounds(begin, end, block_size)
        blocks = self._chosen(begins, ends, sizes)
        ranges = [Range(b, e, size) for b, e, size in zip(begins, ends, blocks, strict=True)]
        return self._loop(tiles_of(ranges), lambda tiles: tiles[0] if single else tiles)

    @_plainly
    def grid(self, begin: Any, end: Any, step: Any) -> Iterator[Any]:
        begins, ends, steps, single = self._bounds(begin, end, step)
        # The positions begin, begin + step, ...: tiles whose begin is what the loop variable is.
        ranges = [Range(b, e, 1 if s is None else int(s)) for b, e, s in zip(begins, ends, steps, strict=True)]
        return self._loop(tiles_of(ranges), lambda tiles: tiles[0].begin if single else tuple(t.begin for t in tiles))

    @_plainly
    def jagged_tile(self, parent: Any) -> Iterator[Any]:
        lengths = torch.as_tensor(as_value(parent)).reshape(-1)
        if lengths.numel() and bool((lengths != lengths[0]).any()):
            self.refuse("rows of different lengths in one tile of the reference mode", "leave the block size of the outer loop open")
        return self.tile(None, int(lengths[0]) if lengths.numel() else 0, None)

    def _loop(self, tiles: Iterator[Any], variable: Callable[[Any], Any]) -> Iterator[Any]:
        depth = len(self.active)
        try:
            for now in tiles:
                self.active[depth:] = [now]
                with torch._C.DisableTorchFunction():
                    value = variable(now)
                yield value
        finally:
            del self.active[depth:]

    def _bounds(self, begin: Any, end: Any, step: Any) -> tuple[list[int], list[int], list[Any], bool]:
        single = not isinstance(end, (tuple, list))
        ends = [end] if single else list(end)

        def spread(value: Any) -> list[Any]:
            items = list(value) if isinstance(value, (tuple, list)) else [value] * len(ends)
            if len(items) != len(ends):
                self.refuse(f"a loop with {len(ends)} ends and {len(items)} begins or block sizes")
            return items

        return [0 if b is None else int(b) for b in spread(begin)], [int(e) for e in ends], spread(step), single

    def _chosen(self, begins: list[int], ends: list[int], given: list[Any]) -> list[int]:
        """The block sizes of a loop: those given, and those that the place in the source has."""
        extents = [max(1, e - b) for b, e in zip(begins, ends, strict=True)]
        missing = [extent for extent, size in zip(extents, given, strict=True) if size is None]
        made = iter(self._at_site(missing, registered=False))
        return [next(made) if size is None else _as_size(size) for size in given]

    def _at_site(self, extents: list[int], registered: bool) -> list[int]:
        frame = self._user_frame()
        site = (frame.f_lasti, self.in_device) if frame is not None else None
        if site not in self._sites:
            blocks = []
            for extent in extents:
                asked = self._blocks[self._made] if self._made < len(self._blocks) else default_block(extent, registered)
                blocks.append(1 if self._one_by_one and not self.in_device else BlockSize(min(asked, extent)))
                self._made += 1
            self._sites[site] = blocks
        return self._sites[site]

    @_plainly
    def register_block_size(self, low: int, high: int | None, extent: Any) -> int:
        (size,) = self._at_site([int(extent)], registered=True)
        return BlockSize(max(low, min(size, high or size)))

    @_plainly
    def barrier(self) -> None:
        """Everything that was stored can be seen: true at all times."""

    def true_size(self, size: Any) -> Any:
        """A dimension as it is now: of the tile, where a block size is that of one loop that we are in."""
        if isinstance(size, (tuple, list)):
            return type(size)(map(self.true_size, size))
        if not isinstance(size, BlockSize):
            return size
        having = [tile for tiles in self.active for tile in tiles if tile.range.block is size]
        return int.__int__(having[0]) if len(having) == 1 else int(size)

    # Tensors.

    @_plainly
    def full(self, shape: Sequence[Any], value: Any, dtype: torch.dtype | None) -> torch.Tensor:
        sizes = [int.__index__(self.true_size(s)) for s in shape]
        dtype = torch.float32 if dtype is None else dtype
        return value.to(dtype).expand(sizes).clone() if isinstance(value, torch.Tensor) else torch.full(sizes, value, dtype=dtype)

    @_plainly
    def dot(self, a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor | None, out_dtype: torch.dtype | None) -> torch.Tensor:
        if a.dtype != b.dtype and not a.dtype.itemsize == b.dtype.itemsize == 1:
            raise DTypeError(f"hl.dot of {a.dtype} and {b.dtype}", hint="convert one with .to(dtype)")
        good = a.dim() == b.dim() and a.dim() in (2, 3) and a.shape[-1] == b.shape[-2] and a.shape[:-2] == b.shape[:-2]
        if not good or (acc is not None and acc.shape != (*a.shape[:-1], b.shape[-1])):
            raise ShapeMismatch(f"hl.dot of {list(a.shape)} and {list(b.shape)}" + (f", acc {list(acc.shape)}" if acc is not None else ""))
        wide = torch.int32 if torch.int8 in (a.dtype, b.dtype) else torch.float32
        product = a.to(wide) @ b.to(wide)
        return (product if acc is None else acc.to(wide) + product).to(acc.dtype if acc is not None else out_dtype or wide)

    @_plainly
    def load(self, tensor: torch.Tensor, index: Any, mask: Any = None) -> torch.Tensor:
        return indexing.load(tensor, index, mask)

    @_plainly
    def store(self, tensor: torch.Tensor, index: Any, value: Any, mask: Any = None) -> None:
        indexing.store(tensor, index, value, mask)

    @_plainly
    def atomic(self, kind: str, tensor: torch.Tensor, index: Any, value: Any, expected: Any = None) -> torch.Tensor:
        return indexing.atomic(kind, tensor, index, value, expected)

    def specialize(self, value: Any) -> Any:
        return value

    def tile_index(self, tile: EagerTile) -> torch.Tensor:
        return tile.index

    # Scans. The combine functions are the user's: they run as the rest of the kernel does.

    def associative_scan(self, combine: Any, inputs: Any, dim: int, reverse: bool) -> Any:
        tensors, call = _operands(combine, inputs)
        steps = [t.flip(dim).unbind(dim) if reverse else t.unbind(dim) for t in tensors]
        scans = list(_running(call, list(zip(*steps, strict=True))))
        if not scans:
            return inputs
        results = [torch.stack(column, dim) for column in zip(*scans, strict=True)]
        results = [r.flip(dim) if reverse else r for r in results]
        return tuple(results) if isinstance(inputs, (tuple, list)) else results[0]

    def reduce(self, combine: Any, inputs: Any, dim: int | None, other: Any, keep_dims: bool) -> Any:
        tensors, call = _operands(combine, inputs)
        rank = tensors[0].dim()
        for d in range(rank - 1, -1, -1) if dim is None else (dim % rank,):
            *_, last = _running(call, list(zip(*(t.unbind(d) for t in tensors), strict=True)))
            tensors = [t.unsqueeze(d) if keep_dims else t for t in last]
        return tuple(tensors) if isinstance(inputs, (tuple, list)) else tensors[0]

    @_plainly
    def cumulative(self, name: str, x: torch.Tensor, dim: int, reverse: bool) -> torch.Tensor:
        function = torch.cumsum if name == "cumsum" else torch.cumprod
        result = function(x.flip(dim) if reverse else x, dim, dtype=x.dtype)
        return result.flip(dim) if reverse else result

    # Random numbers, the same as a compiled kernel's.

    @_plainly
    def rand(self, shape: Sequence[Any], seed: Any) -> torch.Tensor:
        return rng.uniform(rng.words(seed, rng.offsets(shape, self.active))[0])

    @_plainly
    def randint(self, shape: Sequence[Any], low: int, high: int, seed: Any) -> torch.Tensor:
        return rng.integers(rng.words(seed, rng.offsets(shape, self.active))[0], low, high)

    @_plainly
    def rand4x(self, seed: Any, offsets: Any) -> tuple[torch.Tensor, ...]:
        return tuple(rng.uniform(word) for word in rng.words(seed, torch.as_tensor(as_value(offsets)).long()))

    # The rest.

    def device_print(self, prefix: str, values: Sequence[Any]) -> None:
        print(prefix, *map(as_value, values))

    @_plainly
    def inline(self, fn: Any, args: Sequence[Any], output_like: Any, elementwise: bool = False) -> Any:
        import jax  # late: a kernel that says nothing in JAX runs without it

        operands = [jax.dlpack.from_dlpack(a.contiguous()) if isinstance(a, torch.Tensor) else a for a in map(as_value, args)]
        is_tuple = isinstance(output_like, (tuple, list))
        found = fn(*operands)
        outs = found if isinstance(found, (tuple, list)) else [found]
        like = output_like if is_tuple else [output_like]
        results = [torch.from_dlpack(jax.numpy.asarray(o)).to(t.dtype).clone() for o, t in zip(outs, like, strict=True)]
        return tuple(results) if is_tuple else results[0]

    def register_tunable(self, name: str, fragment: Any) -> Any:
        return self._tunables.get(name, fragment.default())


class BlockSize(int):
    """A block size that somebody chose: ``hl.rand`` of such a dimension means the tile of the loop that has it."""


def _as_size(size: Any) -> int:
    return size if isinstance(size, BlockSize) else int(size)


def default_block(extent: int, registered: bool) -> int:
    """A block of a loop over ``extent``: one that divides it, so that blocks can be dimensions, where one of 8 to 64 does."""
    for size in range(min(_WIDE_BLOCK, extent), 7, -1):
        if extent % size == 0 and size < extent:
            return size
    return max(1, extent if registered or extent < _BLOCK else _BLOCK)


def _operands(combine: Any, inputs: Any) -> tuple[list[torch.Tensor], Callable[..., Any]]:
    """The tensors, and ``combine`` as a function of two tuples that gives a tuple."""
    is_tuple = isinstance(inputs, (tuple, list))
    tensors = list(inputs) if is_tuple else [inputs]
    try:
        count = len(inspect.signature(combine).parameters)
    except (TypeError, ValueError):
        count = 2
    unpacked = not is_tuple or count == 2 * len(tensors)

    def call(left: Sequence[Any], right: Sequence[Any]) -> list[Any]:
        result = combine(*left, *right) if unpacked else combine(tuple(left), tuple(right))
        parts = result if isinstance(result, (tuple, list)) else (result,)
        return [part.to(t.dtype) for part, t in zip(parts, tensors, strict=True)]

    return tensors, call


def _running(call: Callable[..., Any], steps: Sequence[Sequence[torch.Tensor]]) -> Iterator[Sequence[torch.Tensor]]:
    """What has been combined up to each step."""
    total: Any = None
    for step in steps:
        total = step if total is None else call(total, step)
        yield total


__all__ = ["BlockSize", "Session", "default_block"]
