"""The table of operations: each ATen operation the lowering knows, as a JAX expression.

An entry receives its operands as source text in a *physical* shape (see ``layout``: the logical shape plus at most one
unit dimension) and returns the text of the result in the result's physical shape. The reference path evaluates the very
same text with physical = logical, so an operation is written down once.

Only text that is made here reaches the generated source: numbers go through ``literal``, dtypes through ``dtype_text``,
names are our own. Strings of a program are compared, never pasted.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..exc import PlanError
from ..program.ir import DType

DTYPES = (
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64", "float8_e4m3fn",
    "float8_e5m2",
)  # fmt: skip
LOW_PRECISION = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
FLOATS = (*LOW_PRECISION, "float32", "float64")
INT_WIDTH = {"uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8}
ITEMSIZE = {"bool": 1, **INT_WIDTH, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1}


class Kind(enum.Enum):
    """How an operation treats the dimensions of its operands; planning, layout and masks go by this alone."""

    ELEMENTWISE = enum.auto()
    REDUCTION = enum.auto()
    VIEW = enum.auto()  # the same elements in the same order: a reshape
    PERMUTE = enum.auto()
    EXPAND = enum.auto()
    CREATE = enum.auto()
    CONTRACT = enum.auto()
    OTHER = enum.auto()


@dataclass(frozen=True)
class Operand:
    """A tensor operand as text: ``text`` evaluates to an array of shape ``phys``; its logical shape is ``shape``."""

    text: str
    shape: tuple[int, ...]
    phys: tuple[int, ...]
    dtype: str

    def phys_dim(self, dim: int) -> int:
        """The physical position of logical dimension ``dim`` (negative counts from the end)."""
        dim = dim % len(self.shape) if self.shape else 0
        return dim + 1 if len(self.shape) == 1 and len(self.phys) == 2 and self.phys[0] == 1 and self.phys[1] == self.shape[0] else dim

    def cast(self, dtype: str) -> str:
        return self.text if self.dtype == dtype else f"{self.text}.astype({dtype_text(dtype)})"


@dataclass(frozen=True)
class Result:
    """What an operation has to produce."""

    shape: tuple[int, ...]
    phys: tuple[int, ...]
    dtype: str
    cpu: bool = False  # XLA for the CPU has no products of narrow floats in every place


Emitter = Callable[[list[Any], dict[str, Any], Result], str]


def dtype_text(name: str) -> str:
    if name not in DTYPES:
        raise PlanError(f"dtype {name!r} is not supported")
    return "jnp.bool_" if name == "bool" else f"jnp.{name}"


def literal(value: object, dtype: str | None = None) -> str:
    """A Python number as source text; in the class of ``dtype`` where given, so that JAX's weak typing keeps it."""
    if isinstance(value, bool):
        value = value if dtype in (None, "bool") else int(value)
    elif isinstance(value, (int, float)) and dtype == "bool":
        value = bool(value)
    if isinstance(value, int) and not isinstance(value, bool) and dtype in FLOATS:
        value = float(value)
    if isinstance(value, float) and dtype in INT_WIDTH:
        value = int(value)
    if isinstance(value, float):
        if math.isnan(value):
            return "jnp.nan"
        if math.isinf(value):
            return "jnp.inf" if value > 0 else "-jnp.inf"
    if not isinstance(value, (bool, int, float)):
        raise PlanError(f"expected a number, got {value!r}")
    return repr(value) if not isinstance(value, int) or value >= 0 else f"({value!r})"


def base_name(name: str) -> str:
    """``aten.add.Tensor`` -> ``add``; ``hl.dot`` -> ``hl.dot``."""
    if name == "aten.view.dtype":
        return "bitcast"
    return name.split(".")[1] if name.startswith("aten.") else name


# ------------------------------------------------------------------------------------------------ elementwise


def term(x: Any, dtype: str) -> str:
    """An operand (array or number) in ``dtype``."""
    return x.cast(dtype) if isinstance(x, Operand) else literal(x, dtype)


def _unary(template: str) -> Emitter:
    """A function of floats: computed in float32 for narrower dtypes, as torch does, then rounded once."""

    def emit(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
        wide = "float32" if out.dtype in LOW_PRECISION else out.dtype
        text = template.format(term(args[0], wide))
        return text if wide == out.dtype else f"({text}).astype({dtype_text(out.dtype)})"

    return emit


def _arith(template: str, *, alpha: bool = False, wide: bool = False) -> Emitter:
    """A function of operands brought to the result's dtype first (PyTorch's promotion has decided that dtype)."""

    def emit(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
        dtype = "float32" if wide and out.dtype in LOW_PRECISION else out.dtype
        texts = [term(a, dtype) for a in args if isinstance(a, (Operand, bool, int, float))]
        if alpha:
            factor = kwargs.get("alpha", args[2] if len(args) > 2 else 1)
            texts = texts[:2]
            if factor != 1:
                texts[1] = f"({texts[1]} * {literal(factor, dtype)})"
        text = template.format(*texts)
        return text if dtype == out.dtype else f"({text}).astype({dtype_text(out.dtype)})"

    return emit


def _compare(template: str) -> Emitter:
    """A comparison or logical test: operands keep their own dtypes, JAX promotes them."""

    def emit(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
        other = next((a.dtype for a in args if isinstance(a, Operand)), None)
        texts = []
        for a in args:
            if isinstance(a, Operand):
                texts.append(a.text)
            elif isinstance(a, float) and other in INT_WIDTH:
                texts.append(literal(a))
            else:
                texts.append(literal(a, other if other != "bool" else None))
        return template.format(*texts)

    return emit


def _logical(template: str) -> Emitter:
    def emit(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
        return template.format(*(a.text if a.dtype == "bool" else f"({a.text} != 0)" for a in args if isinstance(a, Operand)))

    return emit


def _where(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    cond, a, b = args
    return f"jnp.where({cond.text}, {term(a, out.dtype)}, {term(b, out.dtype)})"


def _to(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    x = args[0]
    if out.dtype == "bool" and x.dtype != "bool":
        return f"({x.text} != 0)"
    return x.cast(out.dtype)


def _div(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    mode = kwargs.get("rounding_mode")
    if mode is None:
        return _arith("({0} / {1})")(args[:2], {}, out)
    if mode == "floor":
        return _arith("jnp.floor_divide({0}, {1})")(args[:2], {}, out)
    if out.dtype in FLOATS:
        return _arith("jnp.trunc({0} / {1})")(args[:2], {}, out)
    return _arith(f"lax.div(*jnp.broadcast_arrays({{0}}, jnp.asarray({{1}}, {dtype_text(out.dtype)})))")(args[:2], {}, out)


def _rsub(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    rest = args[2:] or [kwargs.get("alpha", 1)]
    return _arith("({0} - {1})", alpha=True)([args[1], args[0], *rest], {}, out)


def _round(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    decimals = kwargs.get("decimals", 0)
    if decimals == 0:
        return _unary("jnp.round({0})")(args[:1], {}, out)
    there, back = ("*", "/") if decimals > 0 else ("/", "*")
    scale = literal(float(10 ** abs(decimals)))
    return _unary(f"(jnp.round({{0}} {there} {scale}) {back} {scale})")(args[:1], {}, out)


def _clamp(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    low = args[1] if len(args) > 1 else kwargs.get("min")
    high = args[2] if len(args) > 2 else kwargs.get("max")
    text = term(args[0], out.dtype)
    if low is not None:
        text = f"jnp.maximum({text}, {term(low, out.dtype)})"
    return text if high is None else f"jnp.minimum({text}, {term(high, out.dtype)})"


def _pow(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    exponent = args[1]
    if isinstance(exponent, (int, float)) and not isinstance(exponent, bool):
        if exponent == 2:
            return _arith("jnp.square({0})")(args[:1], {}, out)
        if exponent == 0.5:
            return _unary("jnp.sqrt({0})")(args[:1], {}, out)
        if exponent == -0.5:
            return _unary("lax.rsqrt({0})")(args[:1], {}, out)
        if float(exponent).is_integer() and abs(exponent) <= 64:
            wide = "float32" if out.dtype in LOW_PRECISION else out.dtype
            text = f"lax.integer_pow({term(args[0], wide)}, {int(exponent)})"
            return text if wide == out.dtype else f"{text}.astype({dtype_text(out.dtype)})"
    if out.dtype in INT_WIDTH:
        return _arith(f"_int_power({{0}}, {{1}}, {dtype_text(out.dtype)})")(args[:2], {}, out)
    return _arith("jnp.power({0}, {1})", wide=True)(args[:2], {}, out)


def _gelu(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    if kwargs.get("approximate", "none") == "tanh":
        return _unary("jax.nn.gelu({0}, approximate=True)")(args[:1], {}, out)
    # erf, not erfc: Mosaic has no erfc, and torch computes it this way too.
    wide = "float32" if out.dtype in LOW_PRECISION else out.dtype
    x = term(args[0], wide)
    text = f"(0.5 * {x} * (1.0 + lax.erf({x} * {math.sqrt(0.5)!r})))"
    return text if wide == out.dtype else f"{text}.astype({dtype_text(out.dtype)})"


def _isnan(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    return f"({args[0].text} != {args[0].text})"


def _sign(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    text = term(args[0], out.dtype)
    return text if out.dtype == "bool" else f"_sign({text})"


def _philox_word(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    """One of the four words of ``hl.philox`` (see ``legalize``); the words that nobody uses cost nothing."""
    words = ", ".join(term(a, "int32") for a in args[:4])
    return f"_philox({words})[{literal(args[4])}]"


def _bitcast(args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    return f"lax.bitcast_convert_type({args[0].text}, {dtype_text(out.dtype)})"


_LEFT = "jnp.left_shift({0}, {1})"
_RIGHT = "jnp.right_shift({0}, {1})"

ELEMENTWISE: dict[str, Emitter] = {
    # functions of floats
    "exp": _unary("jnp.exp({0})"),
    "exp2": _unary("jnp.exp2({0})"),
    "expm1": _unary("_expm1({0})"),
    "log": _unary("jnp.log({0})"),
    "log2": _unary("jnp.log2({0})"),
    "log10": _unary("(jnp.log({0}) * 0.4342944819032518)"),
    "log1p": _unary("jnp.log1p({0})"),
    "sqrt": _unary("jnp.sqrt({0})"),
    "rsqrt": _unary("lax.rsqrt({0})"),
    "reciprocal": _unary("(1.0 / {0})"),
    "sigmoid": _unary("jax.nn.sigmoid({0})"),
    "silu": _unary("jax.nn.silu({0})"),
    "tanh": _unary("jnp.tanh({0})"),
    "sin": _unary("jnp.sin({0})"),
    "cos": _unary("jnp.cos({0})"),
    "tan": _unary("jnp.tan({0})"),
    "sinh": _unary("_sinh({0})"),
    "cosh": _unary("_cosh({0})"),
    "atan": _unary("jnp.arctan2({0}, 1.0)"),
    "asin": _unary("(2 * jnp.arctan2({0}, 1 + jnp.sqrt((1 - {0}) * (1 + {0}))))"),
    "acos": _unary("(2 * jnp.arctan2(jnp.sqrt(1 - {0}), jnp.sqrt(1 + {0})))"),
    "asinh": _unary("_asinh({0})"),
    "acosh": _unary("_acosh({0})"),
    "atanh": _unary("(0.5 * jnp.log1p(2 * {0} / (1 - {0})))"),
    "erf": _unary("lax.erf({0})"),
    "erfc": _unary("_erfc({0})"),
    "special_erfc": _unary("_erfc({0})"),
    "erfinv": _unary("lax.erf_inv({0})"),
    "lgamma": _unary("lax.lgamma({0})"),
    "digamma": _unary("jnp.where({0} == 0, -1 / {0}, lax.digamma({0}))"),
    "gelu": _gelu,
    "floor": _unary("jnp.floor({0})"),
    "ceil": _unary("jnp.ceil({0})"),
    "trunc": _unary("jnp.trunc({0})"),
    "round": _round,
    "frac": _unary("({0} - jnp.trunc({0}))"),
    # arithmetic in the result's dtype
    "add": _arith("({0} + {1})", alpha=True),
    "sub": _arith("({0} - {1})", alpha=True),
    "rsub": _rsub,
    "mul": _arith("({0} * {1})"),
    "div": _div,
    "floor_divide": _arith("jnp.floor_divide({0}, {1})"),
    "remainder": _arith("jnp.remainder({0}, {1})"),
    "fmod": _arith("jnp.fmod({0}, {1})"),
    "pow": _pow,
    "atan2": _arith("jnp.arctan2({0}, {1})", wide=True),
    "maximum": _arith("jnp.maximum({0}, {1})"),
    "minimum": _arith("jnp.minimum({0}, {1})"),
    "fmax": _arith("jnp.fmax({0}, {1})"),
    "fmin": _arith("jnp.fmin({0}, {1})"),
    "clamp": _clamp,
    "clamp_min": _arith("jnp.maximum({0}, {1})"),
    "clamp_max": _arith("jnp.minimum({0}, {1})"),
    "neg": _arith("(-{0})"),
    "abs": _arith("jnp.abs({0})"),
    "sign": _sign,
    "sgn": _sign,
    "square": _arith("jnp.square({0})"),
    "relu": _arith("jnp.maximum({0}, 0)"),
    "copysign": _arith("jnp.where(_negative({1}), -jnp.abs({0}), jnp.abs({0}))"),
    "hypot": _arith("_hypot({0}, {1})", wide=True),
    "logaddexp": _arith("jnp.logaddexp({0}, {1})", wide=True),
    "bitwise_and": _arith("({0} & {1})"),
    "bitwise_or": _arith("({0} | {1})"),
    "bitwise_xor": _arith("({0} ^ {1})"),
    "bitwise_not": _arith("(~{0})"),
    "__lshift__": _arith(_LEFT),
    "__rshift__": _arith(_RIGHT),
    "bitwise_left_shift": _arith(_LEFT),
    "bitwise_right_shift": _arith(_RIGHT),
    # tests
    "eq": _compare("({0} == {1})"),
    "ne": _compare("({0} != {1})"),
    "lt": _compare("({0} < {1})"),
    "le": _compare("({0} <= {1})"),
    "gt": _compare("({0} > {1})"),
    "ge": _compare("({0} >= {1})"),
    "isnan": _isnan,
    "signbit": _compare("_negative({0})"),
    "isinf": _compare("(jnp.abs({0}) == jnp.inf)"),
    "logical_and": _logical("({0} & {1})"),
    "logical_or": _logical("({0} | {1})"),
    "logical_xor": _logical("({0} ^ {1})"),
    "logical_not": _logical("(~{0})"),
    "where": _where,
    "_to_copy": _to,
    "clone": _to,
    "bitcast": _bitcast,
    "hl.philox_word": _philox_word,
}


# ------------------------------------------------------------------------------------------------ the other kinds


def reduced_dims(args: Sequence[Any], kwargs: dict[str, Any], rank: int) -> tuple[int, ...]:
    """The dimensions a reduction removes, as non-negative numbers; ``None`` and ``()`` mean all."""
    dims = args[1] if len(args) > 1 else kwargs.get("dim")
    if dims is None or dims == ():
        return tuple(range(rank))
    return tuple(sorted({d % rank for d in (dims if isinstance(dims, tuple) else (dims,))})) if rank else ()


@dataclass(frozen=True)
class Reduction:
    """A reduction: the JAX function, what an element that is not there counts as, and whether it widens."""

    function: str
    identity: Callable[[str], str]
    widen: bool = False
    index: bool = False  # the result is a position, not a value


def _lowest(dtype: str) -> str:
    return "False" if dtype == "bool" else "-jnp.inf" if dtype in FLOATS else f"jnp.iinfo({dtype_text(dtype)}).min"


def _highest(dtype: str) -> str:
    return "True" if dtype == "bool" else "jnp.inf" if dtype in FLOATS else f"jnp.iinfo({dtype_text(dtype)}).max"


REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction("jnp.sum", lambda d: "0", widen=True),
    "prod": Reduction("jnp.prod", lambda d: "1", widen=True),
    "amax": Reduction("jnp.max", _lowest),
    "amin": Reduction("jnp.min", _highest),
    "any": Reduction("jnp.any", lambda d: "False"),
    "all": Reduction("jnp.all", lambda d: "True"),
    "argmax": Reduction("jnp.argmax", _lowest, index=True),
    "argmin": Reduction("jnp.argmin", _highest, index=True),
}


def emit_reduction(name: str, x: Operand, dims: tuple[int, ...], out: Result) -> str:
    """``x`` reduced over logical ``dims``. Unit dimensions stay, so that a row's result is a column: no data moves."""
    rule = REDUCTIONS[name]
    if not x.shape:
        return x.cast(out.dtype) if not rule.index else f"jnp.zeros((), {dtype_text(out.dtype)})"
    text, dtype = x.text, x.dtype
    if rule.function in ("jnp.any", "jnp.all") and dtype != "bool":
        text, dtype = f"({text} != 0)", "bool"
    if rule.widen:
        wide = "float32" if out.dtype in LOW_PRECISION else out.dtype
        text, dtype = (text if dtype == wide else f"{text}.astype({dtype_text(wide)})"), wide
    axes = tuple(x.phys_dim(d) for d in dims)
    if rule.index:
        if len(dims) == 1:
            text = f"{rule.function}({text}, axis={axes[0]}, keepdims=True)"
        else:
            text = f"{rule.function}({text})"
        dtype = "int32"
    elif not out.shape:
        text = f"{rule.function}({text})"
    else:
        text = f"{rule.function}({text}, axis={axes}, keepdims=True)"
    kept = () if not out.shape and not (rule.index and len(dims) == 1) else tuple(1 if i in axes else n for i, n in enumerate(x.phys))
    if kept != out.phys:
        text = f"{text}.reshape({out.phys})"
    return text if dtype == out.dtype else f"{text}.astype({dtype_text(out.dtype)})"


def emit_view(x: Operand, out: Result) -> str:
    return x.text if x.phys == out.phys else reshaped(x.text, x.dtype, out.phys)


def reshaped(text: str, dtype: str, shape: tuple[int, ...]) -> str:
    """``text`` of another shape. Masks go as integers: Mosaic cannot move elements of them, and dies of trying."""
    return f"(jnp.where({text}, 1, 0).reshape({shape}) != 0)" if dtype == "bool" else f"{text}.reshape({shape})"


VIEWS = frozenset({"view", "_unsafe_view", "reshape", "unsqueeze", "squeeze", "alias", "detach", "contiguous", "lift_fresh"})
PERMUTES = frozenset({"permute", "transpose", "t"})
CREATIONS = frozenset({
    "full", "zeros", "ones", "empty", "full_like", "zeros_like", "ones_like", "empty_like", "new_full", "new_zeros",
    "new_ones", "new_empty", "scalar_tensor", "arange", "empty_strided", "new_empty_strided",
})  # fmt: skip
CONTRACTIONS = frozenset({"hl.dot"})  # mm, bmm, addmm, ... are rewritten to it by ``legalize``
OTHERS = frozenset({"cat", "select", "slice", "cumsum", "cumprod", "flip"})


def permutation(name: str, args: Sequence[Any], rank: int) -> tuple[int, ...]:
    """The dimension order of a permuting operation."""
    if name == "permute":
        return tuple(d % rank for d in args[1])
    order = list(range(rank))
    if name == "transpose":
        a, b = args[1] % rank, args[2] % rank
        order[a], order[b] = order[b], order[a]
    elif rank == 2:
        order.reverse()
    return tuple(order)


def fill_of(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The value that a creation fills with; ``empty`` gives zeros: what is not defined may as well be harmless."""
    if name in ("full", "full_like"):
        return args[1] if len(args) > 1 else kwargs["fill_value"]
    if name == "new_full":
        return args[2] if len(args) > 2 else kwargs["fill_value"]
    if name == "scalar_tensor":
        return args[0]
    return 1 if "ones" in name else 0


def emit_create(name: str, args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    if name == "arange":
        numbers = [a for a in args if a is not None and not isinstance(a, DType)]
        start, step = (0, 1) if len(numbers) == 1 else (numbers[0], numbers[2] if len(numbers) > 2 else 1)
        dim = max(range(len(out.phys)), key=lambda i: out.phys[i]) if out.phys else 0
        kind = "int32" if out.dtype not in FLOATS else "float32"
        text = f"lax.broadcasted_iota(jnp.int32, {out.phys}, {dim})"
        if kind == "float32":
            text = f"{text}.astype(jnp.float32)"
        if step != 1:
            text = f"({text} * {literal(step, kind)})"
        if start != 0:
            text = f"({text} + {literal(start, kind)})"
        return text if kind == out.dtype else f"{text}.astype({dtype_text(out.dtype)})"
    value = fill_of(name, args, kwargs)
    if isinstance(value, Operand):
        return f"jnp.broadcast_to({value.cast(out.dtype)}, {out.phys})"
    return f"jnp.full({out.phys}, {literal(value, out.dtype)}, {dtype_text(out.dtype)})"


def emit_dot(a: Operand, b: Operand, acc: Operand | None, out: Result, transposed: tuple[bool, bool] = (False, False)) -> str:
    """``a @ b (+ acc)``: 2-D, or with batch dimensions before, which broadcast. Accumulates in float32, or int32 for integers.

    ``transposed``: which of the two is held with its last two dimensions swapped; the matrix unit takes it either way round.
    """
    wide = "float32" if a.dtype in FLOATS or b.dtype in FLOATS else "int32"
    common = a.dtype if a.dtype == b.dtype else _common(a.dtype, b.dtype)
    if out.cpu and common in LOW_PRECISION:
        common = "float32"  # exact: so are the products of what was narrow
    precision = ", precision=lax.Precision.HIGHEST" if common == "float32" else ""
    left, right = a.cast(common), b.cast(common)
    text = _product_text(left, right, a.shape, b.shape, f", preferred_element_type=jnp.{wide}{precision}", transposed)
    if acc is not None:
        text = f"({acc.cast(wide)} + {text})"
    return text if wide == out.dtype else f"{text}.astype({dtype_text(out.dtype)})"


def _common(a: str, b: str) -> str:
    """What two operands of different dtypes become for a product: no value changes."""
    if a in INT_WIDTH and b in INT_WIDTH:
        return "int32"
    return "float32" if {"float32", "float16", "int16", "int32"} & {a, b} else "bfloat16"


def _product_text(left: str, right: str, a: tuple[int, ...], b: tuple[int, ...], how: str, transposed: tuple[bool, bool]) -> str:
    """``left @ right`` of shapes ``a`` and ``b``, as they are held: 2-D products for the matrix unit where there is no true batch."""
    batch_a, batch_b = a[:-2], b[:-2]
    rows, columns = a[-1 if transposed[0] else -2], b[-2 if transposed[1] else -1]
    if not batch_a and not batch_b:
        return _matrix_product(left, right, how, transposed)
    pairs = zip(_padded(batch_a, len(batch_b)), _padded(batch_b, len(batch_a)), strict=True)
    batch = tuple(m if n == 1 else n for n, m in pairs)
    out = (*batch, rows, columns)
    if math.prod(batch_b) == 1 and (math.prod(batch_a) == 1 or not transposed[0]):  # every row of the left against one matrix
        text = _matrix_product(f"{left}.reshape({(math.prod(a[:-1]), a[-1])})", f"{right}.reshape({b[-2:]})", how, transposed)
        return f"{text}.reshape({out})"
    count = math.prod(batch)
    left = left if batch_a == batch else f"jnp.broadcast_to({left}, {(*batch, *a[-2:])})"
    right = right if batch_b == batch else f"jnp.broadcast_to({right}, {(*batch, *b[-2:])})"
    dims = f"(({1 if transposed[0] else 2},), ({2 if transposed[1] else 1},)), ((0,), (0,))"
    if len(batch) == 1:
        return f"lax.dot_general({left}, {right}, ({dims}){how})"
    left, right = f"{left}.reshape({(count, *a[-2:])})", f"{right}.reshape({(count, *b[-2:])})"
    return f"lax.dot_general({left}, {right}, ({dims}){how}).reshape({out})"


def _matrix_product(left: str, right: str, how: str, transposed: tuple[bool, bool]) -> str:
    if not any(transposed):
        return f"jnp.dot({left}, {right}{how})"
    return f"lax.dot_general({left}, {right}, ((({0 if transposed[0] else 1},), ({1 if transposed[1] else 0},)), ((), ())){how})"


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * max(0, rank - len(shape)) + shape


def emit_other(name: str, args: list[Any], kwargs: dict[str, Any], out: Result) -> str:
    """Operations on canonical operands that move elements between dimensions or positions."""
    if name == "cat":
        dim = args[1] if len(args) > 1 else kwargs.get("dim", 0)
        parts = ", ".join(a.cast(out.dtype) for a in args[0])
        return f"jnp.concatenate([{parts}], axis={args[0][0].phys_dim(dim)})"
    x: Operand = args[0]
    dim = x.phys_dim(args[1] if len(args) > 1 and not isinstance(args[1], tuple) else kwargs.get("dim", 0))
    if name == "select":
        index = args[2] if args[2] >= 0 else args[2] + x.phys[dim]
        text = f"lax.slice_in_dim({x.text}, {index}, {index + 1}, axis={dim})"
        return f"{text}.reshape({out.phys})"
    if name == "slice":
        start, stop, step = ([*args[2:], None, None, None])[:3]
        start, stop, step = slice(start, stop, step).indices(x.phys[dim])
        return f"lax.slice_in_dim({x.text}, {start}, {max(start, stop)}, {step}, axis={dim})"
    if name == "flip":
        return f"jnp.flip({x.text}, {tuple(x.phys_dim(d) for d in args[1])})"
    wide = "float32" if out.dtype in LOW_PRECISION else out.dtype
    text = f"jnp.{name}({x.cast(wide)}, axis={dim})"
    return text if wide == out.dtype else f"{text}.astype({dtype_text(out.dtype)})"


def kind_of(name: str) -> Kind | None:
    """The kind of an operation, by its full name; None if the table does not know it."""
    base = base_name(name)
    if base in ELEMENTWISE:
        return Kind.ELEMENTWISE
    if base in REDUCTIONS:
        return Kind.REDUCTION
    if base in VIEWS:
        return Kind.VIEW
    if base in PERMUTES:
        return Kind.PERMUTE
    if base == "expand":
        return Kind.EXPAND
    if base in CREATIONS:
        return Kind.CREATE
    if base in CONTRACTIONS:
        return Kind.CONTRACT
    return Kind.OTHER if base in OTHERS else None
