"""Do two torch tensors share elements? Views of one storage may lie in each other without that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


def share_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Is there a byte that is part of both?"""
    if not a.numel() or not b.numel() or a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr():
        return False
    begin, end = _span(a)
    other_begin, other_end = _span(b)
    if end <= other_begin or other_end <= begin:
        return False
    if _is_dense(a) and _is_dense(b):
        return True
    return bool(np.isin(_bytes(a), _bytes(b)).any())


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """The first byte of a tensor, and one past the last."""
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


def _is_dense(tensor: torch.Tensor) -> bool:
    """Has it an element at every place of its span?"""
    begin, end = _span(tensor)
    return end - begin == tensor.numel() * tensor.element_size()


def _bytes(tensor: torch.Tensor) -> np.ndarray:
    """The address of every byte of a tensor's elements, int64, flat."""
    places = np.zeros((), np.int64)
    for n, stride in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + np.arange(n, dtype=np.int64) * stride
    return (tensor.data_ptr() + places.ravel()[:, None] * tensor.element_size() + np.arange(tensor.element_size())).ravel()


__all__ = ["share_elements"]
