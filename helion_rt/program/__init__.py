"""The program: a captured kernel as plain data, and what can be asked of it without a target."""

from .codec import decode, encode
from .fingerprint import fingerprint, simplify
from .ir import Program

__all__ = ["Program", "decode", "encode", "fingerprint", "simplify"]
