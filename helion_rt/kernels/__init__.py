"""Ready-made kernels: what people would otherwise write themselves, in Helion's language, one small file each.

Every name is an ordinary ``helion_rt`` kernel (or a short function around one): torch tensors or JAX arrays in, the same kind out,
tuned in the background for the shapes it is called with.
"""

from .add import add
from .attention import attention
from .gelu import gelu
from .layer_norm import layer_norm
from .matmul import matmul
from .rms_norm import rms_norm
from .softmax import softmax, softmax_two_pass

__all__ = ["add", "attention", "gelu", "layer_norm", "matmul", "rms_norm", "softmax", "softmax_two_pass"]
