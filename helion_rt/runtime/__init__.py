"""Kernels at run time. Here for Helion's own ``helion.runtime`` names; everything else is in the modules."""


def get_num_sm(device: object = None) -> int:
    """How many workers a persistent kernel is to start: one, as the grid of a TensorCore runs its steps one after the other."""
    return 1


__all__ = ["get_num_sm"]
