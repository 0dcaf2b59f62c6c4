"""The door: torch tensors and other arrays in, JAX arrays through, torch tensors out.

A torch caller gets torch's own semantics: the call is over when it returns (so an input may be overwritten then), an output
owns its memory (it aliases neither an input nor another output), and int64 stays int64. Integers of 64 bits travel in 32:
values that do not fit are refused, never wrapped. Gradients do not flow here: an input is taken detached and outputs have none
(``gradients`` is what a kernel with ``backward=`` puts around it).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from helion_rt.exc import InputError

if TYPE_CHECKING:
    import torch

# What a kernel takes. int64 travels as int32; there are no other 64-bit values, and no wide unsigned ones, on a TPU.
TAKEN = frozenset(
    "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float8_e4m3fn float8_e5m2".split()
)  # fmt: skip
WIDE = "int64"
WIDE_DTYPE = np.dtype(WIDE)


def is_torch(value: object) -> bool:
    """Is it a torch tensor? Does not import torch: without torch in the process nothing is one."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def is_torch_type(kind: type) -> bool:
    """Is it a class of torch tensors?"""
    module = sys.modules.get("torch")
    return module is not None and issubclass(kind, module.Tensor)


def grad_is_enabled() -> bool:
    """Does torch record gradients now?"""
    return "torch" in sys.modules and sys.modules["torch"].is_grad_enabled()


def torch_dtype_name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_name(value: Any) -> str:
    """The dtype's name of an array of any kind; NumPy's names where torch and NumPy agree on one."""
    return torch_dtype_name(value.dtype) if is_torch(value) else getattr(value.dtype, "name", str(value.dtype))


def check_dtype(name: str, dtype: str) -> None:
    """Raise ``InputError`` for a dtype that no target computes in."""
    if dtype not in TAKEN:
        raise InputError(
            f"argument '{name}' is {dtype}: a kernel takes floats of at most 32 bits, signed integers, uint8 and bool",
            hint=_instead(dtype),
        )


def _instead(dtype: str) -> str:
    if dtype.startswith("complex"):
        return "pass real and imaginary parts as two tensors"
    if dtype.startswith("uint"):
        return "convert it to int32, if its values fit"
    return "convert it to float32 or bfloat16" if dtype == "float64" else f"a kernel takes {', '.join(sorted(TAKEN))}"


def check_tensor(tensor: torch.Tensor, name: str) -> None:
    """Raise ``InputError`` unless it is a dense CPU tensor of a dtype that a kernel takes."""
    if tensor.device.type != "cpu":
        raise InputError(
            f"argument '{name}' is on device '{tensor.device}', expected a CPU tensor",
            hint="a meta tensor has no values: use kernel.lower(...)" if tensor.device.type == "meta" else f"pass {name}.cpu()",
        )
    if tensor.is_nested:
        raise InputError(f"argument '{name}' is a nested tensor, expected a dense one", hint=f"pass {name}.to_padded_tensor(0.0)")
    if tensor.layout is not sys.modules["torch"].strided:
        raise InputError(f"argument '{name}' is a {tensor.layout} tensor, expected a dense one", hint=f"pass {name}.to_dense()")
    check_dtype(name, torch_dtype_name(tensor.dtype))


def from_torch(tensor: torch.Tensor, name: str) -> jax.Array:
    """A JAX array of a CPU tensor, zero copy where its layout allows. Raises ``InputError``."""
    check_tensor(tensor, name)
    torch = sys.modules["torch"]
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype is torch.int64:
        if tensor.numel():
            low, high = (int(v) for v in torch.aminmax(tensor))
            check_range(name, low, high)
        tensor = tensor.to(torch.int32)
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    # Strided and expanded views become dense; an unaligned pointer is copied by JAX.
    array = jax.dlpack.from_dlpack(tensor.contiguous())
    return array if jax.default_backend() == "cpu" else jax.device_put(array, jax.local_devices()[0])


def from_numpy(array: np.ndarray, name: str) -> jax.Array:
    """A JAX array of a NumPy array (a copy). Raises ``InputError``."""
    check_dtype(name, array.dtype.name)
    if array.dtype.name == WIDE:
        if array.size:
            check_range(name, int(array.min()), int(array.max()))
        array = array.astype(np.int32)
    return jax.numpy.array(array.astype(array.dtype.newbyteorder("="), copy=False))


def from_jax(array: jax.Array, name: str) -> jax.Array:
    """A JAX array as an executable takes it: 64-bit integers (with x64 on) in 32 bits. Raises ``InputError``."""
    check_dtype(name, array.dtype.name)
    if array.dtype != WIDE_DTYPE:
        return array
    if array.size:
        check_range(name, int(array.min()), int(array.max()))
    return array.astype(np.int32)


def check_range(name: str, low: int, high: int) -> None:
    """Raise ``InputError`` unless the integers from ``low`` to ``high`` fit int32."""
    limits = np.iinfo(np.int32)
    if low < limits.min or high > limits.max:
        raise InputError(
            f"argument '{name}' holds 64-bit integers from {low} to {high}, which do not fit int32",
            hint="a TPU has no 64-bit integers; only values that fit 32 bits can be passed",
        )


def to_torch(outputs: Sequence[jax.Array], inputs: Sequence[Any], dtypes: Sequence[str]) -> list[torch.Tensor]:
    """Torch tensors of an executable's outputs, when they are ready; ``dtypes`` are what the program says they are.

    ``inputs`` are the arrays that went in: an output that is one of their buffers is copied.
    """
    torch = sys.modules["torch"]
    jax.block_until_ready(outputs)
    taken = {pointer for a in inputs if isinstance(a, jax.Array) and (pointer := _pointer(a))}
    result = []
    for array, dtype in zip(outputs, dtypes, strict=True):
        tensor = _tensor_of(torch, array)
        pointer = _pointer(array)
        if pointer in taken:
            tensor = tensor.clone()
        elif pointer:
            taken.add(pointer)
        wanted = getattr(torch, dtype)
        result.append(tensor if tensor.dtype is wanted else tensor.to(wanted))
    return result


def _tensor_of(torch: Any, array: jax.Array) -> torch.Tensor:
    if array.size == 0:  # no memory to share
        return torch.empty(array.shape, dtype=getattr(torch, array.dtype.name))
    if next(iter(array.devices())).platform != "cpu":
        array = jax.device_put(array, jax.devices("cpu")[0])
    return torch.from_dlpack(array)


def as_torch(array: jax.Array) -> torch.Tensor:
    """A torch tensor to read a JAX array through, of the same memory where that can be: not to be kept or written."""
    return _tensor_of(sys.modules["torch"], array)


def _pointer(array: jax.Array) -> int:
    """Where the array's memory is; 0 if it has none or several."""
    return array.unsafe_buffer_pointer() if array.size and len(array.devices()) == 1 else 0


def write_back(original: torch.Tensor, new: torch.Tensor, name: str) -> None:
    """Give a tensor that the kernel wrote in place its new contents. Raises ``InputError`` if torch does not let it be written."""
    try:
        with sys.modules["torch"].no_grad():
            original.copy_(new)
    except RuntimeError as error:
        raise InputError(f"argument '{name}', which the kernel writes, cannot be written: {error}", hint=f"pass {name}.clone()") from error
