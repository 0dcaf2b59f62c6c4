"""The program: a captured kernel as plain data, and what can be asked of it without a target."""

from .codec import decode, encode
from .cost import Cost, cost
from .fingerprint import fingerprint, simplify
from .ir import Program
from .printer import to_text

__all__ = ["Cost", "Program", "cost", "decode", "encode", "fingerprint", "simplify", "to_text"]
