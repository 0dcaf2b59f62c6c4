"""How often XLA compiles: once a signature, at its first call, whatever the arguments are made of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl

COMPILED = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compilations():
    """A list that grows by one with each compilation."""
    found = []

    def listen(event, duration, **_):
        if event == COMPILED:
            found.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


@helion.kernel
def shifted(x: torch.Tensor, rows: torch.Tensor, by: float) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile_m, tile_n in hl.tile(out.size()):
        out[tile_m, tile_n] = x[tile_m, tile_n] * by + rows[tile_m][:, None]
    return out


def arguments(kind):
    x, rows = np.arange(24, dtype=np.float32).reshape(4, 6), np.arange(4)
    if kind == "torch":
        return torch.from_numpy(x), torch.from_numpy(rows), 1.5
    rows = rows.astype(np.int32)
    if kind == "committed":
        return *(jax.device_put(a, jax.local_devices()[0]) for a in (x, rows)), 1.5
    return jnp.asarray(x), jnp.asarray(rows), 1.5


@pytest.mark.parametrize("kind", ["torch", "jax", "committed"])
def test_the_first_call_compiles_once_and_the_next_not_at_all(kind, compilations, monkeypatch):
    monkeypatch.setenv("HELION_RT_TUNE", "off")
    args = arguments(kind)
    fresh = helion.kernel(shifted.fn)
    jax.block_until_ready(jax.jit(jnp.sin)(jnp.ones(3)))  # whatever JAX itself compiles once
    compilations.clear()
    first = fresh(*args)
    assert len(compilations) == 1
    np.testing.assert_array_equal(np.asarray(fresh(*args)), np.asarray(first))
    assert len(compilations) == 1
