"""Functions of floats that Mosaic does not have, from those that it has, as source text (see ``helpers``).

Each is right to a few units in the last place of float32 over its whole domain; float64, which no TPU has, is left to XLA.
"""

from __future__ import annotations

EXPM1 = '''
def _expm1(x):
    if x.dtype == jnp.float64:
        return jnp.expm1(x)
    half = jnp.tanh(0.5 * x)
    return jnp.where(jnp.abs(x) < 0.5, 2 * half / (1 - half), jnp.exp(x) - 1)
'''

SINH = '''
def _sinh(x):
    """Near 0 by its series; elsewhere so that nothing overflows before the result does."""
    if x.dtype == jnp.float64:
        return jnp.sinh(x)
    square = x * x
    series = x * (1 + square / 6 * (1 + square / 20 * (1 + square / 42 * (1 + square / 72))))
    half = jnp.exp(0.5 * jnp.abs(x))
    large = 0.5 * half * half - 0.5 / half / half
    return jnp.where(jnp.abs(x) < 1, series, jnp.where(x < 0, -large, large))
'''

COSH = '''
def _cosh(x):
    if x.dtype == jnp.float64:
        return jnp.cosh(x)
    half = jnp.exp(0.5 * jnp.abs(x))
    return 0.5 * half * half + 0.5 / half / half
'''

ASINH = '''
def _asinh(x):
    size = jnp.abs(x)
    small = jnp.log1p(size + size * (size / (1 + jnp.sqrt(1 + size * size))))
    value = jnp.where(size < 1e9, small, jnp.log(size) + 0.6931471805599453)
    return jnp.where(x < 0, -value, value)
'''

ACOSH = '''
def _acosh(x):
    over = x - 1
    small = jnp.log1p(over + jnp.sqrt(over) * jnp.sqrt(over + 2))
    return jnp.where(x < 1e9, small, jnp.log(x) + 0.6931471805599453)
'''

ERFC = '''
def _erfc(x):
    """1 - erf(x) without cancellation: by an expansion whose relative error is below 1.2e-7 everywhere."""
    if x.dtype == jnp.float64:
        return lax.erfc(x)
    size = jnp.abs(x)
    t = 1 / (1 + 0.5 * size)
    terms = (0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368)
    total = jnp.zeros_like(x)
    for term in terms:
        total = (total + term) * t
    value = t * jnp.exp(-size * size - 1.26551223 + total)
    return jnp.where(x < 0, 2 - value, value)
'''

HYPOT = '''
def _hypot(x, y):
    """sqrt(x * x + y * y), scaled so that the squares fit."""
    x, y = jnp.abs(x), jnp.abs(y)
    large, small = jnp.maximum(x, y), jnp.minimum(x, y)
    ratio = small / jnp.where(large == 0, 1, large)
    value = large * jnp.sqrt(1 + ratio * ratio)
    return jnp.where((x == jnp.inf) | (y == jnp.inf), jnp.inf, value)
'''

NEGATIVE = '''
def _negative(x):
    """Whether the sign is minus, that of zero and of NaN too."""
    x = jnp.asarray(x)
    if not jnp.issubdtype(x.dtype, jnp.floating):
        return x < 0
    wide = x.astype(jnp.float32) if x.dtype.itemsize < 4 else x
    return lax.bitcast_convert_type(wide, jnp.int64 if wide.dtype.itemsize == 8 else jnp.int32) < 0
'''

SIGN = '''
def _sign(x):
    """-1, 0 or 1; 0 for NaN, as in torch."""
    return jnp.where(x > 0, jnp.ones_like(x), jnp.where(x < 0, -jnp.ones_like(x), jnp.zeros_like(x)))
'''

FLAT_POSITION = '''
def _flat_position(flat, shape, held):
    """A position in a tile of ``shape``, counted row by row, as one in a tile that has ``held`` elements along each dimension."""
    position, stride = 0, 1
    for size, count in zip(shape[::-1], held[::-1]):
        position = position + flat % size * stride
        flat, stride = flat // size, stride * count
    return position
'''

INT_POWER = '''
def _int_power(x, n, dtype):
    """x ** n of integers, modulo what ``dtype`` holds; 0 for negative n, but of 1 and -1."""
    x, n = jnp.broadcast_arrays(jnp.asarray(x, dtype), jnp.asarray(n, dtype))
    result, square, rest = jnp.ones_like(x), x, n
    for _ in range(8 * x.dtype.itemsize):
        result = jnp.where((rest & 1) != 0, result * square, result)
        square, rest = square * square, rest >> 1
    if not jnp.issubdtype(x.dtype, jnp.signedinteger):
        return result
    inverse = jnp.where(x == 1, 1, jnp.where(x == -1, 1 - 2 * (n & 1), 0)).astype(x.dtype)
    return jnp.where(n < 0, inverse, result)
'''

HELPERS = {
    "_int_power": INT_POWER, "_sign": SIGN, "_flat_position": FLAT_POSITION,
    "_expm1": EXPM1, "_sinh": SINH, "_cosh": COSH, "_asinh": ASINH, "_acosh": ACOSH, "_erfc": ERFC, "_hypot": HYPOT, "_negative": NEGATIVE,
}  # fmt: skip
