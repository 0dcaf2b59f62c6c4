"""The tensors that kernel code sees: PyTorch tensors without data that know their value in the program."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from .tiles import Tile

if TYPE_CHECKING:
    from .tracer import Frame, Tracer


class TracedTensor(torch.Tensor):
    """A tensor of the program. Operations on it are seen by ``CaptureMode``, below all of PyTorch's own Python."""

    tracer: Tracer
    meta: torch.Tensor  # its shape (hints for block sizes), strides, dtype
    value: int  # id in the program; in-place operations change it
    frame: Frame  # where the value was made
    parent: TracedTensor | None  # what it is a view of
    view_call: tuple[Any, tuple[Any, ...], dict[str, Any]] | None  # how: (op, args after the tensor, kwargs)
    children: list[weakref.ref[TracedTensor]]
    origin: tuple[str, int] | None  # ("index" | "begin" | "end", axis) of a tile
    loaned: TracedTensor | None  # the variable of a loop that stands for this one inside of it
    mutated: bool
    read_on_loan: bool
    is_param: bool  # a SCALAR param
    is_number: bool  # what .item() gave: an array of rank 0 until Python looks at it

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def make(tracer: Tracer, meta: torch.Tensor, value: int, frame: Frame) -> TracedTensor:
        with torch._C._DisableTorchDispatch():
            # The hints of the strides are kept: PyTorch decides by them what is a view and what a copy.
            self = torch.Tensor._make_wrapper_subclass(
                TracedTensor, meta.shape, strides=meta.stride(), dtype=meta.dtype, device=torch.device("cpu")
            )
        assert isinstance(self, TracedTensor)
        self.tracer, self.meta, self.value, self.frame = tracer, meta, value, frame
        self.parent = self.view_call = self.origin = self.loaned = None
        self.children = []
        self.mutated = self.read_on_loan = self.is_param = self.is_number = False
        return self

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        raise RuntimeError(f"{func} on a tensor of a kernel whose capture is over")

    @property
    def is_host(self) -> bool:
        """Whether it is an array of the host part (an argument, an allocation), not a tile."""
        return self.frame is self.tracer.host

    @property
    def shape(self) -> Any:  # type: ignore[override]
        return self.tracer.shape_of(self)

    def size(self, dim: int | None = None) -> Any:  # type: ignore[override]
        shape = self.tracer.shape_of(self)
        return shape if dim is None else shape[dim]

    def numel(self) -> Any:  # type: ignore[override]
        product: Any = 1
        for dim in self.tracer.shape_of(self):
            product = product * dim
        return product

    nelement = numel  # type: ignore[assignment]

    def __len__(self) -> Any:
        shape = self.tracer.shape_of(self)
        if not shape or type(shape[0]) is not int:
            self.tracer.refuse("len() of a tensor whose first dimension is a tile", "use .size(0)")
        return shape[0]

    def reshape(self, *shape: Any) -> Any:  # type: ignore[override]
        # PyTorch works on sizes here before the operation is seen: tiles must already be sizes.
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return torch.Tensor.reshape(self, self.tracer.plain_sizes(sizes))

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        if len(shape) == 1 and isinstance(shape[0], torch.dtype):
            if shape[0].itemsize != self.dtype.itemsize or self.dtype.itemsize == 8 or torch.bool in (shape[0], self.dtype):
                message = f"view({shape[0]}) of {self.dtype}: the elements do not keep their size"
                self.tracer.refuse(message, "use .to(dtype) to convert values")
            return torch.Tensor.view(self, shape[0])
        sizes = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
        return torch.Tensor.view(self, self.tracer.plain_sizes(sizes))

    def __getitem__(self, index: Any) -> Any:
        return self.tracer.getitem(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.tracer.setitem(self, index, value)

    def __iter__(self) -> Any:
        shape = self.tracer.shape_of(self)
        if not shape or type(shape[0]) is not int:
            self.tracer.refuse("iterating over the elements of a tile", "use operations on the whole tile")
        return iter(self.unbind(0))

    def __bool__(self) -> bool:
        return bool(self._one("used as a condition", "use torch.where"))

    def __int__(self) -> int:
        return int(self._one("turned into a Python int", "keep it a tensor, or hl.specialize the argument"))

    def __index__(self) -> int:
        if self.dtype.is_floating_point:
            raise TypeError("only integer tensors of a single element can be converted to an index")
        return int(self)

    def __float__(self) -> float:
        return float(self._one("turned into a Python float", "keep it a tensor, or hl.specialize the argument"))

    def __complex__(self) -> complex:
        return complex(float(self))

    def __round__(self, digits: int | None = None) -> Any:
        return torch.round(self).to(torch.int32) if digits is None else torch.round(self, decimals=digits)

    def __floor__(self) -> Any:
        return torch.floor(self).to(torch.int32)

    def __ceil__(self) -> Any:
        return torch.ceil(self).to(torch.int32)

    def __trunc__(self) -> Any:
        return torch.trunc(self).to(torch.int32)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __contains__(self, item: object) -> bool:
        return bool(torch.eq(self, item).any())  # type: ignore[arg-type]

    def _one(self, use: str, hint: str) -> Any:
        """The one element that Python code needs."""
        value = self.tracer.needed(self, use, hint)
        while isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        if isinstance(value, tuple):
            self.tracer.refuse(f"a {self.tracer.describe(self)} is {use}: it has more than one element, or none", "reduce it first")
        return value

    def item(self) -> Any:
        return self.tracer.number(self)

    def tolist(self) -> Any:
        return _listed(self.tracer.needed(self, "read with .tolist()", "keep it a tensor"))

    def numpy(self, *, force: bool = False) -> Any:
        return self.tracer.needed(self, "read with .numpy()", "keep it a tensor")

    def __array__(self, dtype: Any = None) -> Any:  # type: ignore[override]
        return self.tracer.needed(self, "turned into a NumPy array", "keep it a tensor")

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"<{self.tracer.describe(self)}>"

    __str__ = __repr__
    __hash__ = torch.Tensor.__hash__


def _listed(value: Any) -> Any:
    return [_listed(v) for v in value] if isinstance(value, tuple) else value


def _with_tiles(name: str) -> Any:
    """``torch.Tensor.<name>``, to which a tile on the other side means its positions."""
    plain = getattr(torch.Tensor, name)

    def method(self: TracedTensor, other: Any) -> Any:
        return plain(self, other.index if isinstance(other, Tile) else other)

    method.__name__ = name
    return method


for _name in "add sub mul truediv floordiv mod pow".split():
    setattr(TracedTensor, f"__{_name}__", _with_tiles(f"__{_name}__"))
    setattr(TracedTensor, f"__r{_name}__", _with_tiles(f"__r{_name}__"))
for _name in "lt le gt ge eq ne iadd isub imul and or xor".split():
    setattr(TracedTensor, f"__{_name}__", _with_tiles(f"__{_name}__"))


class CaptureMode(TorchDispatchMode):
    """Sends every ATen operation of the kernel to the tracer."""

    def __init__(self, tracer: Tracer) -> None:
        super().__init__()
        self.tracer = tracer

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True (the default) would import torch._dynamo at the first operation: seconds.
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.tracer.dispatch(func, args, kwargs or {})
