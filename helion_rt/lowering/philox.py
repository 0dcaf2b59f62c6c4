"""Philox-4x32-10, the counter-based generator of Salmon et al. (SC 2011), in 32-bit integers that every target has.

JAX has no 64-bit products on a TPU, and Mosaic likes its integers signed, so words are int32 bit patterns, and the high half
of a product is put together from products of 16-bit halves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..program.ir import Op
from .layout import Form
from .ops import literal, term

if TYPE_CHECKING:
    from .writer import KernelWriter

PHILOX = '''
def _philox(*words):
    """The four words of Philox-4x32-10, from two of the key and four of the counter (two, then zeros): int32 bit patterns."""

    def high_word(a, b):
        a_low, a_high = a & 0xFFFF, (a >> 16) & 0xFFFF
        b_low, b_high = b & 0xFFFF, lax.shift_right_logical(b, jnp.full_like(b, 16))
        middle = a_high * b_low + lax.shift_right_logical(a_low * b_low, jnp.full_like(b, 16))
        other = a_low * b_high + (middle & 0xFFFF)
        sixteen = jnp.full_like(other, 16)
        return a_high * b_high + lax.shift_right_logical(middle, sixteen) + lax.shift_right_logical(other, sixteen)

    shape = jnp.broadcast_shapes(*(jnp.shape(x) for x in words))
    k0, k1, c0, c1, c2, c3 = (jnp.broadcast_to(jnp.asarray(x, jnp.int32), shape) for x in (*words, 0, 0)[:6])

    def one(_, state):
        k0, k1, c0, c1, c2, c3 = state
        first, second = high_word(-845247145, c2) ^ c1 ^ k0, high_word(-766435501, c0) ^ c3 ^ k1
        return k0 - 1640531527, k1 - 1150833019, first, c2 * -845247145, second, c0 * -766435501

    # Mosaic has no loop that begins with a constant, or with a scalar everywhere, and goes on with a vector: this is a zero that it
    # does not know to be one.
    sixteen = jnp.full_like(c0, 16)
    zero = lax.shift_right_logical(lax.shift_right_logical(c0, sixteen), sixteen)
    # A loop, not ten rounds in a row: a tenth of the code to compile.
    return lax.fori_loop(0, 10, one, (k0, k1, c0, c1 | zero, c2 | zero, c3 | zero))[2:]
'''

HELPERS = {"_philox": PHILOX}


def write_word(w: KernelWriter, op: Op) -> None:
    """One word; all four are written once."""
    words = [w.operand(a, Form.ROW) for a in op.args[:4]]
    text = ", ".join(term(a, "int32") for a in words)
    name = w.find("philox", text) or w.assign(("philox", text), "words", f"_philox({text})")
    w.bind((op.results[0], Form.ROW), f"{name}[{literal(op.args[4])}]")

