"""Put helion_rt kernels into a transformers model: its attention, layer norms and exact GELUs. For inference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.activations import GELUActivation
from transformers.masking_utils import bidirectional_mask_function, eager_mask

from .. import kernels


@dataclass(frozen=True, slots=True)
class Replaced:
    """How many modules of a model now run a helion_rt kernel."""

    attention: int
    layer_norm: int
    gelu: int


class LayerNorm(nn.Module):
    """``nn.LayerNorm`` over the last dimension, with the very parameters of the module it replaces."""

    def __init__(self, old: nn.LayerNorm, kernel: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = old.weight, old.bias, old.eps
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x, self.weight, self.bias, self.eps)


class GELU(nn.Module):
    """The exact GELU."""

    def __init__(self, kernel: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.kernel = kernel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.kernel(x)


def swap_in(
    model: PreTrainedModel,
    name: str = "helion_rt",
    *,
    attention: Callable[..., torch.Tensor] = kernels.attention,
    layer_norm: Callable[..., torch.Tensor] = kernels.layer_norm,
    gelu: Callable[..., torch.Tensor] = kernels.gelu,
) -> Replaced:
    """Make ``model`` run helion_rt kernels, in place.

    Args:
        model: any transformers model that takes its attention from ``AttentionInterface``; in evaluation mode (kernels have no gradient).
        name: what the attention is registered as in transformers; another name for another ``attention``.
        attention, layer_norm, gelu: functions that are called as those of ``helion_rt.kernels`` are.

    Returns:
        How many modules were replaced.

    Raises:
        ValueError: the model is in training mode, or transformers did not accept the attention.
    """
    if model.training:
        raise ValueError("helion_rt kernels have no gradient: call model.eval() first")
    AttentionInterface.register(name, _attention_function(attention))
    AttentionMaskInterface.register(name, padding_mask)
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(f"{type(model).__name__} does not take its attention from transformers' AttentionInterface")
    norms = _replace(model, _is_plain_layer_norm, lambda old: LayerNorm(old, layer_norm))
    gelus = _replace(model, _is_exact_gelu, lambda old: GELU(gelu))
    attentions = sum(hasattr(module, "is_causal") for module in model.modules())
    return Replaced(attention=attentions, layer_norm=norms, gelu=gelus)


def padding_mask(batch_size: int, kv_length: int, mask_function: Callable[..., Any], **kwargs: Any) -> torch.Tensor | None:
    """The mask function of transformers for our attention.

    Returns:
        None where nothing is masked; ``[batch, keys]`` to be added to the scores where only padding is masked (which spares the kernel
        ``queries`` times the reading); otherwise transformers' own ``[batch, 1, queries, keys]``, also to be added.
    """
    plain = mask_function is bidirectional_mask_function and not kwargs.get("kv_offset") and not kwargs.get("use_vmap")
    tokens: torch.Tensor | None = kwargs.get("attention_mask")
    if not plain or (tokens is not None and tokens.shape != (batch_size, kv_length)):
        return eager_mask(batch_size, kv_length=kv_length, mask_function=mask_function, **kwargs)
    if tokens is None:
        return None
    dtype = kwargs.get("dtype", torch.float32)
    return torch.zeros(tokens.shape, dtype=dtype, device=tokens.device).masked_fill_(~tokens.bool(), torch.finfo(dtype).min)


def _attention_function(kernel: Callable[..., torch.Tensor]) -> Callable[..., tuple[torch.Tensor, None]]:
    """``kernel`` with the calling convention of transformers' AttentionInterface."""

    def forward(
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """query ``[b, h, m, d]``, key and value ``[b, h or fewer, n, d]`` -> ``[b, m, h, d]`` and no weights."""
        if dropout:
            raise ValueError(f"helion_rt attention has no dropout (asked for {dropout}): call model.eval() first")
        unknown = [option for option in ("softcap", "s_aux", "position_bias") if kwargs.get(option) is not None]
        if unknown:
            raise ValueError(f"helion_rt attention does not know {', '.join(unknown)}, which {type(module).__name__} asks for")
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        causal = bool(getattr(module, "is_causal", False) if is_causal is None else is_causal)
        padding_only = attention_mask is not None and attention_mask.dim() == 2
        out = kernel(
            query,
            key,
            value,
            key_bias=attention_mask if padding_only else None,
            bias=None if padding_only else attention_mask,
            # A full mask of transformers already holds the causal part; a single query sees everything.
            causal=causal and attention_mask is None and query.shape[2] > 1,
            scale=scaling,
        )
        return out.transpose(1, 2).contiguous(), None

    return forward


def _is_plain_layer_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1 and module.elementwise_affine


def _is_exact_gelu(module: nn.Module) -> bool:
    if isinstance(module, nn.GELU):
        return module.approximate == "none"
    return isinstance(module, GELUActivation)


def _replace(model: nn.Module, wanted: Callable[[nn.Module], bool], make: Callable[[Any], nn.Module]) -> int:
    """Put ``make(old)`` in the place of every module ``wanted``; how many there were."""
    found = [(parent, name, child) for parent in model.modules() for name, child in parent.named_children() if wanted(child)]
    for parent, name, child in found:
        setattr(parent, name, make(child))
    return len(found)


__all__ = ["GELU", "LayerNorm", "Replaced", "padding_mask", "swap_in"]
