"""What the target's compiler says of a function's time: ``scheduled`` estimates, for TPUs that need not be here."""

from .api import estimate
from .process import compile_and_estimate, environment
from .result import Bottleneck, Estimate, KernelEstimate

__all__ = ["Bottleneck", "Estimate", "KernelEstimate", "compile_and_estimate", "environment", "estimate"]
