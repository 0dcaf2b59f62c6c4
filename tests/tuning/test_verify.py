"""The judge: rounding passes, mistakes do not."""

import ml_dtypes
import numpy as np

from helion_rt.tuning.verify import mismatch

RTOL = 1e-5


def test_rounding_passes_and_a_wrong_element_does_not():
    b = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    assert mismatch([b * np.float32(1 + 1e-6)], [b], RTOL) is None
    a = b.copy()
    a[3, 5] += 0.01
    assert "expected" in (mismatch([a], [b], RTOL) or "")


def test_small_elements_of_a_large_array_are_judged_by_its_size():
    b = np.array([1000.0, 1e-7], np.float32)
    assert mismatch([b + np.float32(1e-4)], [b], RTOL) is None


def test_nans_and_infinities_must_be_at_the_same_places():
    b = np.array([1.0, np.nan, np.inf, -np.inf], np.float32)
    assert mismatch([b.copy()], [b], RTOL) is None
    assert mismatch([np.array([np.nan, 1.0, np.inf, -np.inf], np.float32)], [b], RTOL)
    assert mismatch([np.array([1.0, np.nan, -np.inf, -np.inf], np.float32)], [b], RTOL)
    assert mismatch([np.array([np.inf, np.nan, np.inf, -np.inf], np.float32)], [b], RTOL)


def test_integers_are_exact_and_shapes_dtypes_counts_matter():
    b = np.arange(4, dtype=np.int32)
    assert mismatch([b], [b], RTOL) is None
    assert mismatch([b + 1], [b], RTOL)
    assert mismatch([b.astype(np.float32)], [b], RTOL)
    assert mismatch([b[:3]], [b], RTOL)
    assert mismatch([], [b], RTOL)


def test_bfloat16_and_empty():
    b = np.ones((8,), ml_dtypes.bfloat16)
    assert mismatch([b], [b], 0.05) is None
    assert mismatch([b * 2], [b], 0.05)
    assert mismatch([np.zeros((0, 3), np.float32)], [np.zeros((0, 3), np.float32)], RTOL) is None
