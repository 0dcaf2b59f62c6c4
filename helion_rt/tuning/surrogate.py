"""A Gaussian process over the configs of one space: what the times seen so far say about those not tried.

What is predicted is the logarithm of the time, as the model's plus a residual that varies smoothly over the logarithms of the block
sizes and jumps between strategies and other choices. Rasmussen and Williams, Gaussian Processes for Machine Learning, algorithm 2.1;
expected improvement after Jones, Schonlau and Welch (1998). Some tens of trials and some thousand candidates: numpy does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from helion_rt.config import Config

Array = NDArray[Any]

# Of the residual: its standard deviation, and the distances (in doublings of a block; in choices that differ) over which it varies.
# The pair under which the times seen are likeliest is taken.
DEVIATIONS = (0.15, 0.4, 1.0)
LENGTHS = (0.7, 1.5, 3.0, 6.0)
CHOICE_LENGTH = 1.0
NOISE = 0.03  # of a time, relative
JITTER = 0.03  # by which a config differs from what varies smoothly: unseen ones may always be a little better
LEVEL = 3.0  # how wrong the model may be altogether: the standard deviation of a constant
SLOPE = 0.3  # and how wrong about proportions: that of a multiple of its logarithm


class Features:
    """Configs of one space as numbers: logarithms of block sizes, and codes of every other choice."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, int, str], float] = {}

    def blocks(self, configs: Sequence[Config]) -> Array:
        return np.array([[math.log2(size) for size in config.get("block_sizes") or ()] for config in configs]).reshape(len(configs), -1)

    def choices(self, configs: Sequence[Config]) -> Array:
        """One column a list entry of a choice; equal codes are equal values, and 0 is one that is not there."""
        rows = []
        for config in configs:
            row: dict[tuple[str, int], float] = {}
            for key, value in config.to_dict().items():
                if key != "block_sizes":
                    for place, item in enumerate(value if isinstance(value, list) else [value]):
                        if item is not None:
                            row[key, place] = self._codes.setdefault((key, place, repr(item)), len(self._codes) + 1.0)
            rows.append(row)
        columns = sorted({place for row in rows for place in row})
        return np.array([[row.get(place, 0.0) for place in columns] for row in rows]).reshape(len(rows), -1)


class Surrogate:
    """Knows ``configs`` with their ``modelled`` seconds; ``improvement`` says which of them to try next."""

    def __init__(self, configs: Sequence[Config], modelled: Sequence[float]) -> None:
        features = Features()
        self.prior = np.log(np.maximum(np.array(modelled, dtype=float), 1e-12))
        self._centred = self.prior - float(np.median(self.prior))
        self._blocks, self._choices = features.blocks(configs), features.choices(configs)

    def distance(self, seen: Sequence[int]) -> Array:
        """Of every config from the nearest of those numbered ``seen``."""
        size, choice = self._distances(np.array(seen))
        return (np.sqrt(size) + choice).min(axis=0)

    def predict(self, seen: Sequence[int], seconds: Sequence[float]) -> tuple[Array, Array]:
        """Mean and standard deviation of the logarithm of every config's time, given those of the configs numbered ``seen``."""
        at = np.array(seen)
        residual = np.log(np.array(seconds, dtype=float)) - self.prior[at]
        offset = float(np.median(residual))
        residual = residual - offset
        size, choice = self._distances(at)
        trend = LEVEL**2 + SLOPE**2 * self._centred[at][:, None] * self._centred[None, :]
        near = [(deviation, length) for deviation in DEVIATIONS for length in LENGTHS]
        fits = [_fit(_smooth(size[:, at], choice[:, at], *pair) + trend[:, at], residual) for pair in near]
        best = max(range(len(fits)), key=lambda i: (fits[i][0], -i))
        _, factor, weights = fits[best]
        own = near[best][0] ** 2 + LEVEL**2 + SLOPE**2 * self._centred**2
        cross = _smooth(size, choice, *near[best]) + trend
        variance = np.maximum(own - (np.linalg.solve(factor, cross) ** 2).sum(axis=0), 0.0) + JITTER**2
        return self.prior + offset + weights @ cross, np.sqrt(variance)

    def improvement(self, seen: Sequence[int], seconds: Sequence[float], incumbent: float) -> Array:
        """Expected gain over ``incumbent`` seconds, as a fraction of it, of every config; 0 for those that were seen."""
        mean, deviation = self.predict(seen, seconds)
        gain = math.log(incumbent) - mean
        z = gain / deviation
        expected = gain * _normal_cdf(z) + deviation * np.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
        expected[np.array(seen)] = 0.0
        return expected

    def _distances(self, at: NDArray[np.int64]) -> tuple[Array, Array]:
        """Of the configs ``at`` from all: squared in doublings of blocks, and the number of other choices that differ."""
        size = np.zeros((len(at), len(self.prior)))
        for column in range(self._blocks.shape[1]):
            size += (self._blocks[at, column][:, None] - self._blocks[None, :, column]) ** 2
        choice = np.zeros_like(size)
        for column in range(self._choices.shape[1]):
            choice += self._choices[at, column][:, None] != self._choices[None, :, column]
        return size, choice


def _smooth(size: Array, choice: Array, deviation: float, length: float) -> Array:
    return deviation**2 * np.exp(-0.5 * size / length**2 - choice / CHOICE_LENGTH)


def _fit(kernel: Array, residual: Array) -> tuple[float, Array, Array]:
    """The logarithm of the likelihood, the Cholesky factor and the weights. ``NOISE`` makes the kernel positive definite."""
    factor = np.linalg.cholesky(kernel + NOISE**2 * np.eye(len(residual)))
    weights = np.linalg.solve(factor.T, np.linalg.solve(factor, residual))
    return -0.5 * float(residual @ weights) - float(np.log(np.diag(factor)).sum()), factor, weights


def _normal_cdf(z: Array) -> Array:
    return np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in z])
