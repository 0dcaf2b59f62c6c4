"""The judge of candidates: the reference path on made-up inputs, kept with its answers, and what it says about a candidate's."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from helion_rt import lowering
from helion_rt.config import Config
from helion_rt.program.ir import Program
from helion_rt.targets import Target

from . import executable, inputs, verify
from .inputs import Values

Run = Callable[..., Sequence[Any]]

ADVERSARIAL = (Values.LARGE, Values.TINY, Values.ZERO, Values.ODD)

# Of an output, elements that are compared for adversarial values: all of a moderate one, else a stride of it and its end.
KEPT_ELEMENTS = 1 << 22
KEPT_END = 1 << 12

NUDGES = 3
NUDGE_FACTOR = 2.0

# Inputs that are kept rather than made again, in bytes, all kinds of values together.
KEPT_INPUT_BYTES = 256 << 20
# What asking the reference about adversarial values may take in all, in seconds: a trial has a deadline.
REFERENCE_SECONDS = 15.0


class Judge:
    """Judges candidates of ``program`` on inputs made from ``entries`` (a recipe).

    ``like``: a config whose results a candidate's must have bit for bit (strict mode), beside agreeing with the reference.
    """

    def __init__(self, program: Program, entries: Sequence[dict[str, Any]], target: Target, like: Config | None = None) -> None:
        self.program = program
        self.entries = list(entries)
        self.target = target
        self.like = like
        self.rtol = verify.tolerance(program)
        self.by_own_blocks = lowering.depends_on_blocks(program)
        self.values = (Values.NORMAL, *(ADVERSARIAL if inputs.has_floats(entries) else ()))
        self.reference_seconds = 0.0
        self._made: dict[Values, list[Any]] = {}
        self.normal = self._arrays(Values.NORMAL)  # what candidates are timed on
        self._references: dict[tuple[int, ...] | None, Run] = {}
        self._answers: dict[tuple[Values, tuple[int, ...] | None], list[np.ndarray]] = {}
        self._slack: dict[tuple[Values, tuple[int, ...] | None], list[np.ndarray]] = {}
        self._like_run: Run | None = None

    def prepare(self) -> None:
        """Ask the reference about the inputs on which candidates are timed. Raises what building and running it raise.

        A slow one is asked about fewer kinds of values.
        """
        if self.by_own_blocks:
            return
        self._reference(None)
        begin = time.perf_counter()
        self._answer(Values.NORMAL, None)
        self.reference_seconds = time.perf_counter() - begin
        affordable = int(REFERENCE_SECONDS / max(self.reference_seconds, 1e-9))
        order = (Values.NORMAL, Values.ODD, Values.LARGE, Values.TINY, Values.ZERO)
        self.values = tuple(v for v in order[: 1 + affordable] if v in self.values)

    @property
    def input_bytes(self) -> int:
        return sum(getattr(a, "nbytes", 0) for a in self.normal)

    def is_sound(self) -> bool:
        """Does the reference still answer what it answered? If not, something in this process has gone bad."""
        known = self._answers.get((Values.NORMAL, None))
        again = self._kept(self._reference(None)(*self.normal), Values.NORMAL)
        return known is None or verify.mismatch(again, known, self.rtol) is None

    def fault(self, run: Run, config: Config, values: Values) -> str | None:
        """What is wrong with the answers of ``run``, the executable of ``config``, to inputs of these values; None if nothing is.

        Where they differ by more than the tolerance, and time allows, the reference is asked twice more. How much do its own answers
        change when the inputs change by the tolerance? Nothing exacter can be asked of a candidate: near cancellation, on the edge
        of a rounding, for exp of large values. And what does it answer with the candidate's own block sizes? A kernel may say
        something (e.g. about a tile of nothing but -inf) that depends on them.
        """
        found = self._kept(run(*self._arrays(values)), values)
        fault = self._against_reference(found, config, values)
        if fault is None and self.like is not None:
            fault = verify.bitwise(found, self._answers_of_like(values))
        return f"wrong result for {values.value} inputs: {fault}" if fault else None

    def _against_reference(self, found: list[np.ndarray], config: Config, values: Values) -> str | None:
        own = tuple(config.get("block_sizes") or ())
        blocks = own if self.by_own_blocks else None
        fault = verify.mismatch(found, self._answer(values, blocks), self.rtol)
        if fault is None:
            return None
        if (NUDGES + 1) * self.reference_seconds > REFERENCE_SECONDS:
            return fault
        slack = self._slack_of(values, blocks)
        if verify.mismatch(found, self._answer(values, blocks), self.rtol, slack) is None:
            return None
        if blocks is None and own and verify.mismatch(found, self._answer(values, own), self.rtol, slack) is None:
            return None
        return fault

    def _arrays(self, values: Values) -> list[Any]:
        if values in self._made:
            return self._made[values]
        arrays = _on_device(inputs.make(self.entries, values))
        if values is Values.NORMAL or self.input_bytes * len(self.values) <= KEPT_INPUT_BYTES:
            self._made[values] = arrays
        return arrays

    def _kept(self, outputs: Sequence[Any], values: Values) -> list[np.ndarray]:
        """The outputs, or what is compared of them."""
        arrays = [np.asarray(out) for out in outputs]
        if values is Values.NORMAL:
            return arrays
        return [_sample(a) for a in arrays]

    def _reference(self, blocks: tuple[int, ...] | None) -> Run:
        if blocks not in self._references:
            if blocks is None:
                fn = executable.function(self.program, None, self.target)
            else:
                fn = lowering.reference(self.program, blocks)
            self._references[blocks] = executable.compiled(fn, self.program)
        return self._references[blocks]

    def _answer(self, values: Values, blocks: tuple[int, ...] | None) -> list[np.ndarray]:
        key = (values, blocks)
        if key not in self._answers:
            self._answers[key] = self._kept(self._reference(blocks)(*self._arrays(values)), values)
        return self._answers[key]

    def _slack_of(self, values: Values, blocks: tuple[int, ...] | None) -> list[np.ndarray]:
        key = (values, blocks)
        if key not in self._slack:
            middle = self._answer(values, blocks)
            slack = [np.zeros(a.shape) for a in middle]
            for seed in range(NUDGES):
                nudged = _on_device(inputs.nudged(inputs.make(self.entries, values), self.rtol, seed))
                other = self._kept(self._reference(blocks)(*nudged), values)
                slack = [np.maximum(s, NUDGE_FACTOR * d) for s, d in zip(slack, verify.distance(middle, other), strict=True)]
            self._slack[key] = slack
        return self._slack[key]

    def _answers_of_like(self, values: Values) -> list[np.ndarray]:
        assert self.like is not None
        if self._like_run is None:
            self._like_run = executable.compiled(executable.function(self.program, self.like, self.target), self.program)
        return self._kept(self._like_run(*self._arrays(values)), values)


def _on_device(arrays: Sequence[Any]) -> list[Any]:
    return [jnp.asarray(a) if isinstance(a, np.ndarray) else a for a in arrays]


def _sample(array: np.ndarray) -> np.ndarray:
    if array.size <= KEPT_ELEMENTS:
        return array
    flat = array.reshape(-1)
    step = array.size // KEPT_ELEMENTS | 1  # odd: a power of two would see the same column of every row
    return np.concatenate([flat[::step], flat[-KEPT_END:]])


__all__ = ["ADVERSARIAL", "Judge"]
