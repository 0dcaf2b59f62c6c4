"""Tables of indices: their words in SMEM, and what is known of them from a function and its arguments."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from helion_rt.schedule.tables import Contents, Table, known, matching, words

from .texts import TABLED


def test_words_of_vectors_and_matrices() -> None:
    assert words(np.asarray([3, -1], np.int32)).tolist() == [3, 0xFFFFFFFF]
    matrix = words(np.arange(6, dtype=np.int32).reshape(2, 3))
    assert matrix.shape == (256,) and matrix[:3].tolist() == [0, 1, 2] and matrix[128:131].tolist() == [3, 4, 5]


def test_narrow_elements_of_four_rows_share_a_word() -> None:
    rows = np.asarray([[1, 2], [3, 4], [5, 6], [-1, 8], [9, 10]], np.int8)
    packed = words(rows[None])
    assert packed[0] == 1 | 3 << 8 | 5 << 16 | 0xFF << 24
    assert packed[1] == 2 | 4 << 8 | 6 << 16 | 8 << 24
    assert packed[128] == 9 and packed[129] == 10


def test_a_copy_fills_memory_from_either_form_of_an_address() -> None:
    contents = Contents((np.asarray(2, np.int32), np.asarray([7, 8], np.int32)))
    for source in (2 << 20, 2 << 24):
        memory: dict[int, int] = {}
        contents.copy_in(memory, source, 1000)
        assert memory == {1000: 7, 1001: 8}
    contents.copy_in(memory, None, 1000)
    contents.copy_in(memory, 9 << 20, 0)  # an operand that is no table
    assert 0 not in memory


def test_tables_are_matched_by_shape() -> None:
    right = Table((np.asarray(2, np.int32), np.zeros(4, np.int32)))
    wrong = Table((np.asarray(2, np.int32), np.zeros(5, np.int32)))
    assert matching(TABLED, [wrong, right]) is right
    assert matching(TABLED, [wrong]) is None


def test_what_follows_from_arguments_and_constants() -> None:
    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(4,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, table: (table[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, table: (i, 0)),
    )

    def kernel(table: object, x: object, y: object) -> None:
        y[...] = x[...]  # type: ignore[index]

    call = pl.pallas_call(kernel, grid_spec=spec, out_shape=jax.ShapeDtypeStruct((32, 128), jnp.float32))

    def function(order: jax.Array, x: jax.Array) -> jax.Array:
        return call(jnp.cumsum(order) - 1, x)

    x = jax.ShapeDtypeStruct((32, 128), jnp.float32)
    jaxpr = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((4,), jnp.int32), x)
    (table,) = known(jaxpr, [np.ones(4, np.int32), None])
    assert table.operands[0].tolist() == [0, 1, 2, 3]
    assert known(jaxpr, [None, None]) == []
