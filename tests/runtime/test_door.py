"""Each trap of the door between torch and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from helion_rt.exc import InputError
from helion_rt.runtime import door

ZERO_COPY = [torch.float32, torch.bfloat16, torch.float16, torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e4m3fn]


@pytest.mark.parametrize("dtype", ZERO_COPY, ids=str)
@pytest.mark.parametrize("shape", [(16, 16), (0, 3), ()], ids=str)
def test_dtypes_go_in_and_come_out(dtype, shape):
    tensor = (torch.arange(256) % 2).to(torch.float32).reshape(16, 16).to(dtype)
    tensor = tensor if shape == (16, 16) else torch.zeros(shape).to(dtype)
    array = door.from_torch(tensor, "x")
    assert array.dtype.name == door.torch_dtype_name(dtype) and array.shape == shape
    (back,) = door.to_torch([jax.jit(lambda a: a.copy())(array)], [array], [door.torch_dtype_name(dtype)])
    assert back.dtype is dtype and torch.equal(back.to(torch.float32), tensor.to(torch.float32))


def test_an_aligned_tensor_is_not_copied():
    tensor = torch.zeros(1024)
    assert tensor.data_ptr() % 64 == 0
    assert door.from_torch(tensor, "x").unsafe_buffer_pointer() == tensor.data_ptr()


@pytest.mark.parametrize(
    "view",
    [lambda t: t[1:], lambda t: t[:, 1:5], lambda t: t.t(), lambda t: t[::2], lambda t: t[:1].expand(6, 8), lambda t: t.flatten()[3:]],
    ids=["rows", "columns", "transposed", "strided", "expanded", "unaligned"],
)
def test_any_layout(view):
    tensor = view(torch.arange(64.0).reshape(8, 8))
    assert np.array_equal(np.asarray(door.from_torch(tensor, "x")), tensor.numpy())


def test_requires_grad_and_parameters():
    parameter = torch.nn.Parameter(torch.ones(4))
    assert np.array_equal(np.asarray(door.from_torch(parameter, "w")), np.ones(4))
    assert np.array_equal(np.asarray(door.from_torch(torch.ones(4, requires_grad=True) * 2, "x")), np.full(4, 2.0))


def test_int64_goes_where_its_values_fit():
    array = door.from_torch(torch.tensor([-(2**31), 2**31 - 1]), "i")
    assert array.dtype == jnp.int32 and np.asarray(array).tolist() == [-(2**31), 2**31 - 1]
    assert door.from_torch(torch.zeros(0, dtype=torch.int64), "i").shape == (0,)
    for bad in (2**31, -(2**31) - 1):
        with pytest.raises(InputError, match="'i' holds 64-bit integers"):
            door.from_torch(torch.tensor([0, bad]), "i")
    with pytest.raises(InputError, match="do not fit"):
        door.from_numpy(np.array([2**40]), "i")
    assert door.from_numpy(np.array([3]), "i").dtype == jnp.int32


def test_int64_outputs_come_back_as_int64():
    (out,) = door.to_torch([jnp.arange(3)], [], ["int64"])
    assert out.dtype is torch.int64 and out.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64], ids=str)
def test_wide_floats_are_refused(dtype):
    with pytest.raises(InputError, match=r"'x' is (float64|complex64)"):
        door.from_torch(torch.zeros(2, dtype=dtype), "x")


def test_other_devices_and_layouts_are_refused():
    with pytest.raises(InputError, match="device 'meta'"):
        door.from_torch(torch.zeros(2, device="meta"), "x")
    with pytest.raises(InputError, match="dense"):
        door.from_torch(torch.eye(3).to_sparse(), "x")


def test_outputs_alias_neither_inputs_nor_each_other():
    tensor = torch.zeros(1024)
    array = door.from_torch(tensor, "x")
    one = jnp.ones(16)
    same, first, second = door.to_torch([array, one, one], [array], ["float32"] * 3)
    same += 1
    first += 1
    assert tensor.sum() == 0 and torch.equal(second, torch.ones(16))


def test_an_output_keeps_its_memory():
    (out,) = door.to_torch([jax.jit(lambda: jnp.full((256, 256), 7.0))()], [], ["float32"])
    for _ in range(20):  # what would reuse freed memory
        jnp.zeros((256, 256)).block_until_ready()
    assert bool((out == 7).all())


def test_write_back_reaches_a_leaf_that_requires_grad():
    tensor = torch.zeros(3, requires_grad=True)
    door.write_back(tensor, torch.ones(3), "x")
    assert tensor.tolist() == [1, 1, 1]


def test_a_tensor_that_cannot_be_written_is_named():
    with pytest.raises(InputError, match="argument 'x', which the kernel writes"):
        door.write_back(torch.zeros(1).expand(3), torch.ones(3), "x")


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "object", "datetime64[s]", "<U3", "complex128"])
def test_dtypes_that_no_target_has_are_refused(dtype):
    with pytest.raises(InputError, match="argument 'x' is"):
        door.from_numpy(np.zeros(2, dtype), "x")


def test_nested_tensors_are_refused():
    with pytest.raises(InputError, match="nested"):
        door.from_torch(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "x")


def test_numpys_foreign_byte_order():
    assert np.array_equal(door.from_numpy(np.arange(3, dtype=">f4"), "x"), [0, 1, 2])
