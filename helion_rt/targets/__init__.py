"""What code is made for: TPU generations and the CPU. The ground floor: nothing here knows kernels.

Importing this folder imports neither JAX nor libtpu, and sets no environment variable.
"""

from .compiler import (
    aim,
    compile_for,
    compile_lowered,
    compiler_reason,
    count_tpu_custom_calls,
    has_chips,
    interpreted_as,
    lower_for,
    prepare_environment,
)
from .target import NAMES, TPU_NAMES, Target, detect, from_device, get

__all__ = [
    "NAMES", "TPU_NAMES", "Target", "aim", "compile_for", "compile_lowered", "compiler_reason", "count_tpu_custom_calls",
    "detect", "from_device", "get", "has_chips", "interpreted_as", "lower_for", "prepare_environment",
]  # fmt: skip
