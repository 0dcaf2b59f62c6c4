"""Rules for shapes: what PyTorch itself says, without the imports that its meta kernels cost."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from helion_rt.capture import shapes

_aten = torch.ops.aten
FLOATS, INTS, BOOLS = torch.randn(3, 4), torch.randint(1, 9, (3, 4)), torch.randn(3, 4) > 0
BATCH = torch.randn(2, 3, 3)

CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "floor_divide of ints": (_aten.floor_divide.default, (INTS, INTS[0]), {}),
    "floor_divide by a number": (_aten.floor_divide.Scalar, (FLOATS, 2), {}),
    "rsub": (_aten.rsub.Tensor, (FLOATS, INTS), {}),
    "rsub of a number": (_aten.rsub.Scalar, (INTS, 2), {}),
    "where of numbers": (_aten.where.Scalar, (BOOLS, 1.0, 0.0), {}),
    "where of a number and a tensor": (_aten.where.ScalarSelf, (BOOLS, 1.0, FLOATS[:1]), {}),
    "where of a tensor and a number": (_aten.where.ScalarOther, (BOOLS, FLOATS, 1), {}),
    "any of dimensions": (_aten.any.dims, (BOOLS, [0, 1]), {}),
    "all of dimensions": (_aten.all.dims, (BOOLS, [1], True), {}),
    "var of dimensions": (_aten.var.dim, (FLOATS, [1]), {}),
    "var": (_aten.var.default, (FLOATS,), {}),
    "var_mean": (_aten.var_mean.dim, (FLOATS, [0], True, True), {}),
}


def on_meta(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(a.to("meta") if isinstance(a, torch.Tensor) else a for a in args)


@pytest.mark.parametrize("case", CASES)
def test_a_rule_gives_what_pytorch_gives(case: str) -> None:
    func, args, kwargs = CASES[case]
    expected = func(*args, **kwargs)
    got = shapes.infer(func, on_meta(args), kwargs)
    for a, b in zip(got if isinstance(got, tuple) else (got,), expected if isinstance(expected, tuple) else (expected,), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


def test_products_with_a_dtype_of_their_own() -> None:
    a = BATCH.to("meta", torch.bfloat16)
    out = shapes.infer(_aten.bmm.dtype, (a, a, torch.float32), {})
    assert (out.shape, out.dtype) == (torch.Size((2, 3, 3)), torch.float32)
    with pytest.raises(ValueError, match="a product of"):
        shapes.infer(_aten.mm.dtype, (FLOATS.to("meta"), FLOATS.to("meta"), torch.float32), {})


def test_rules_import_neither_dynamo_nor_sympy() -> None:
    code = (
        "import sys, torch; from tests.capture import test_shapes as t; from helion_rt.capture import shapes;"
        "[shapes.infer(f, t.on_meta(args), kw) for f, args, kw in t.CASES.values()];"
        "t.test_products_with_a_dtype_of_their_own();"
        "print([m for m in ('torch._dynamo', 'sympy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"
