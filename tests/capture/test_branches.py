"""``if``, ``while``, conditional expressions and jumps: in Python where Python can decide, on the device where only it can."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helion_rt.language as hl
from helion_rt.exc import DTypeError, Unsupported

from .test_capture import check, names, program_of, rand


def positive_or_negative(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.grid(x.size(0)):
        values = x[row, :]
        total = values.sum()
        if total > 0:
            values = values * 2
        else:
            values = values - 1
        out[row, :] = values
    return out


def test_both_branches() -> None:
    x = rand(6, 4)
    program = check(positive_or_negative, (x,), (), torch.where(x.sum(1, keepdim=True) > 0, x * 2, x - 1))
    assert names(program).count("hl.if") == 1


def classified(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0)])
    for row in hl.grid(x.size(0)):
        v = x[row]
        kind = 0
        if v > 1:
            kind = 1
            if v > 2:
                kind = 2
        elif v < -1:
            kind = -1
        if v > 100:
            out[row] = -7
        else:
            out[row] = kind
    return out


def test_numbers_become_tensors_and_elif_chains_nest() -> None:
    x = torch.tensor([0.0, 1.5, 3.0, -2.0, 200.0])
    check(classified, (x,), (), torch.tensor([0.0, 1.0, 2.0, -1.0, -7.0]))


def changed_in_place(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        acc = hl.zeros([tile])
        for inner in hl.tile(4):
            if inner.begin > 0:
                acc += x[tile]
            else:
                acc -= 1
        out[tile] = acc
    return out


def test_in_place_in_a_branch() -> None:
    x = rand(8)
    check(changed_in_place, (x,), (4, 2), x - 1)


def plain_python(x: torch.Tensor, flag: bool, bias: Any, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        if flag and bias is not None:
            v = v + bias[tile]
        for i in range(5):
            if i == 1:
                continue
            if i == 3:
                break
            v = v + i
        v = v * 2 if flag else v
        m = n
        while m < 3:
            m = m + 1
            v = v + 1
        if not flag:
            out[tile] = v - 1
            continue
        out[tile] = v
    return out


@pytest.mark.parametrize("flag", [True, False])
def test_python_decides_what_it_can(flag: bool) -> None:
    x, bias = rand(8), rand(8) * 3
    expected = (x + bias + 2) * 2 + 2 if flag else x + 2 + 1
    program = check(plain_python, (x, flag, bias, 1), (4,), expected)
    assert not {"hl.if", "hl.while"} & set(names(program))


def skipped(x: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in hl.grid(x.size(0)):
        if skip[row] == 1:
            continue
        v = x[row] + 1
        if skip[row] == 2:
            out[row] = v * 10
            continue
        out[row] = v
    return out


def test_continue_that_ends_a_branch() -> None:
    x, skip = rand(5), torch.tensor([0, 1, 2, 1, 0], dtype=torch.int32)
    check(skipped, (x, skip), (), torch.where(skip == 1, 0.0, torch.where(skip == 2, (x + 1) * 10, x + 1)))


def chosen(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.grid(x.size(0)):
        i = at[row]
        first = x[i] if 0 <= i < x.size(0) else 0.0
        both = 1.0 if i > 0 and not (i == 2 or i == 3) else 2.0
        either = 1 if i < 0 or i > 2 or x[row] > 100 else 0
        out[row] = first + both + either
    return out


def test_conditional_expressions() -> None:
    x, at = rand(4), torch.tensor([2, 9, -1, 1], dtype=torch.int32)
    expected = torch.tensor([x[2] + 2, 1 + 1, 2 + 1, x[1] + 1])
    program = check(chosen, (x, at), (), expected)
    assert "hl.if" in names(program)  # x[i] must not be read where i is outside


def bits(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for row in hl.grid(x.size(0)):
        n = x[row]
        count = 0
        while n > 0:
            if n % 2 == 1:
                count = count + 1
            n = n // 2
        out[row] = count
    return out


def test_while_on_the_device() -> None:
    x = torch.tensor([0, 1, 5, 255, 1024], dtype=torch.int32)
    program = check(bits, (x,), (), torch.tensor([0, 1, 2, 8, 1], dtype=torch.int32))
    assert "hl.while" in names(program)


def newton(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a = x[tile]
        y, step = a, 0
        while ((y * y - a).abs() > 1e-4 * a).any() and step < 50:
            y = (y + a / y) * 0.5
            step += 1
        out[tile] = y
    return out


def test_while_on_tiles() -> None:
    x = rand(8).abs() + 0.5
    check(newton, (x,), (4,), x.sqrt(), tolerance=1e-3)


def loop_in_a_branch(x: torch.Tensor, on: torch.Tensor) -> torch.Tensor:
    out = torch.zeros([x.size(0)])
    for row in hl.grid(x.size(0)):
        acc = hl.zeros([])
        if on[row] != 0:
            for tile in hl.tile(x.size(1)):
                acc = acc + x[row, tile].sum()
        out[row] = acc
    return out


def test_loop_in_a_branch() -> None:
    x, on = rand(4, 6), torch.tensor([1, 0, 0, 1], dtype=torch.int32)
    check(loop_in_a_branch, (x, on), (3,), x.sum(1) * on)


def unread_in_a_branch(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        scale = x[tile].sum()
        for _inner in hl.tile(4):
            if x.size(0) > 100:
                scale = scale + 1
            out[tile] = x[tile] * scale
    return out


def test_a_variable_that_a_plain_branch_would_assign_is_not_lost() -> None:
    x = rand(8)
    check(unread_in_a_branch, (x,), (8, 2), x * x.sum())


def scalar_condition(x: torch.Tensor, n: int) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + 1 if n > 2 else x[tile]
    return out


def test_a_condition_on_python_numbers_is_static() -> None:
    x = rand(8)
    program = check(scalar_condition, (x, 3), (4,), x + 1)
    assert program.params[1].static == 3 and "hl.if" not in names(program)


# What is refused.


def _one_branch(x: torch.Tensor) -> None:
    for row in hl.grid(x.size(0)):
        if x[row] > 0:
            v = x[row]
        x[row] = v  # HERE


def _two_shapes(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        v = x[tile]
        if v.sum() > 0:
            v = v.sum()
        x[tile] = v  # HERE


def _two_kinds(x: torch.Tensor) -> None:
    for row in hl.grid(x.size(0)):
        t = "a"
        if x[row] > 0:
            t = "b"
        x[row] = len(t)  # HERE


def _break(x: torch.Tensor) -> None:
    for row in hl.grid(x.size(0)):
        while x[row] > 0:
            if x[row] > 1:
                break  # HERE


def _raise(x: torch.Tensor) -> None:
    for row in hl.grid(x.size(0)):
        if x[row] > 0:
            raise ValueError("positive")  # HERE


def _return(x: torch.Tensor) -> None:
    for row in hl.grid(x.size(0)):
        if x[row] > 0:
            return  # HERE


def _nested_continue(x: torch.Tensor) -> None:
    for row in hl.grid(x.size(0)):
        if x[row] > 0:
            if x[row] > 1:
                continue  # HERE
            x[row] = 2
        x[row] = 1


def _wide_condition(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        if x[tile] > 0:  # HERE
            x[tile] = 1


REFUSED = [
    (_one_branch, "'v' is assigned in one branch only"), (_two_shapes, "one shape and dtype in both"),
    (_two_kinds, "only tensors and numbers"),
    (_break, "'break'"), (_raise, "'raise'"), (_return, "'return'"), (_nested_continue, "'continue'"), (_wide_condition, "condition"),
]  # fmt: skip


@pytest.mark.parametrize(("fn", "message"), REFUSED, ids=[fn.__name__.strip("_") for fn, _ in REFUSED])
def test_refused_with_its_line(fn: Any, message: str) -> None:
    with pytest.raises(Unsupported, match=message) as caught:
        program_of(fn, rand(8))
    line = caught.value.line
    assert line is not None
    with open(__file__) as file:
        assert "# HERE" in file.read().splitlines()[line - 1]


def test_a_float_instead_of_an_integer_tensor() -> None:
    def kernel(x: torch.Tensor) -> None:
        for row in hl.grid(x.size(0)):
            v = x[row]
            if v > 0:
                v = 0.5
            x[row] = v

    with pytest.raises(DTypeError, match="one dtype"):
        program_of(kernel, torch.ones(4, dtype=torch.int32))


def two_names(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        a = x[tile] + 0
        b = a
        if x[tile].sum() > -1000:
            a += 1
            out[tile] = b
            b = b * 2
        out[tile] = out[tile] + a + b
    return out


def test_two_names_of_a_tensor_in_a_branch() -> None:
    x = rand(8)
    check(two_names, (x,), (4,), (x + 1) * 4)


def test_two_names_of_a_tensor_in_a_loop_are_refused() -> None:
    def kernel(x: torch.Tensor) -> None:
        for tile in hl.tile(x.size(0)):
            a = x[tile] + 0
            b = a
            for _inner in hl.tile(4):
                a += 1
                b = b * 2
            x[tile] = a + b

    with pytest.raises(Unsupported, match="names of one tensor"):
        program_of(kernel, rand(8))


def bound_that_a_plain_branch_would_assign(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    for row in hl.grid(x.size(0)):
        end = n[row]
        for i in hl.grid(2):
            if x.size(0) > 100:
                end = end + 1
            for j in hl.grid(end):
                out[row] = out[row] + x[row] * i * j
    return out


def test_a_bound_is_not_lost_either() -> None:
    x, n = rand(3), torch.tensor([0, 2, 4], dtype=torch.int32)
    check(bound_that_a_plain_branch_would_assign, (x, n), (), x * torch.tensor([0.0, 1.0, 6.0]))
