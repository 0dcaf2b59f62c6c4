"""torch's random functions in kernels: what they draw, from which generator, and what does not change it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt
import helion_rt as helion
import helion_rt.language as hl
from helion_rt import lowering
from helion_rt.config import Config
from helion_rt.exc import CaptureError, DTypeError, InputError, Unsupported
from helion_rt.program import codec
from helion_rt.runtime import generator
from helion_rt.runtime.counters import counters
from helion_rt.tuning import inputs, verify

ROOT = str(Path(helion_rt.__file__).parent.parent)
SHAPES = [(128, 256), (133, 257)]


@helion.kernel
def every(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    m, n = x.shape
    uniform, normal, chosen = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    whole, dropped = torch.empty([m, n], dtype=torch.int32), torch.empty_like(x)
    for tile_m, tile_n in hl.tile([m, n]):
        uniform[tile_m, tile_n] = torch.rand([tile_m, tile_n], dtype=x.dtype)
        normal[tile_m, tile_n] = torch.randn_like(x[tile_m, tile_n])
        chosen[tile_m, tile_n] = torch.bernoulli(x[tile_m, tile_n])
        whole[tile_m, tile_n] = torch.randint(-3, 5, [tile_m, tile_n]).to(torch.int32)
        dropped[tile_m, tile_n] = torch.nn.functional.dropout(x[tile_m, tile_n], 0.4)
    return uniform, normal, chosen, whole, dropped


def moments(x):
    return x.double().mean().item(), x.double().var().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_numbers_are_distributed_as_torch_says(shape, dtype):
    torch.manual_seed(11)
    uniform, normal, chosen, whole, dropped = every(torch.full(shape, 0.25, dtype=dtype))
    n = uniform.numel()
    error = 5 / n**0.5  # of a mean, in deviations of one number
    assert uniform.min() >= 0 and uniform.max() < 1
    for found, mean, variance in ((uniform, 0.5, 1 / 12), (normal, 0, 1), (chosen, 0.25, 3 / 16), (whole, 0.5, 63 / 12)):
        got_mean, got_variance = moments(found)
        ulp = torch.finfo(dtype).eps if found is uniform else 0  # narrow uniform numbers are rounded down
        assert abs(got_mean - mean) < error * variance**0.5 + ulp
        assert abs(got_variance - variance) < 3 * error * variance + ulp
    assert set(chosen.unique().tolist()) == {0, 1} and whole.unique().tolist() == list(range(-3, 5))
    kept = torch.tensor(0.25 / 0.6).to(dtype).item()
    assert dropped.unique().tolist() == [0, kept] and abs((dropped == 0).double().mean().item() - 0.4) < error


@pytest.mark.parametrize("shape", SHAPES)
def test_places_calls_and_elements_have_numbers_of_their_own(shape):
    torch.manual_seed(3)
    x = torch.full(shape, 0.5)
    first, second = every(x), every(x)
    again = torch.corrcoef(torch.stack([t.double().flatten() for t in (*first, *second)]))
    assert (again - torch.eye(10)).abs().max() < 5 / x.numel() ** 0.5
    assert first[1].unique().numel() > 0.99 * x.numel()
    rows = torch.corrcoef(first[1][:32].double())
    assert (rows - torch.eye(32)).abs().max() < 6 / shape[1] ** 0.5


def test_manual_seed_makes_a_kernel_reproducible():
    x = torch.full((33, 20), 0.5)
    torch.manual_seed(7)
    first, second = every(x), every(x)
    torch.manual_seed(7)
    assert all(map(torch.equal, every(x), first)) and all(map(torch.equal, every(x), second))
    assert not torch.equal(first[0], second[0])


def with_blocks(fn, blocks):
    return helion.kernel(fn, config=Config(block_sizes=blocks))


def seeded(kernel, *args):
    torch.manual_seed(1)
    return kernel(*args)


@pytest.mark.parametrize("blocks", [[8, 16], [16, 128], [133, 257]])
def test_block_sizes_do_not_matter(blocks):
    x = torch.full((133, 257), 0.5)
    want, got = seeded(every, x), seeded(with_blocks(every.fn, blocks), x)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(got, want, strict=True))


def _in_loops(x):
    b, m, n = x.shape
    out, sums = torch.empty_like(x), torch.empty([b, m], dtype=x.dtype)
    for i in hl.grid(b):
        for tile_m in hl.tile(m):
            total = hl.zeros([tile_m], dtype=x.dtype)
            for tile_n in hl.tile(n):
                noise = torch.rand_like(x[i, tile_m, tile_n])
                out[i, tile_m, tile_n] = noise
                total = total + noise.sum(-1)
            sums[i, tile_m] = total
    return out, sums


def test_loops_draw_anew_in_every_round():
    x = torch.zeros(3, 20, 37)
    want, sums = seeded(with_blocks(_in_loops, [20, 37]), x)
    assert want.unique().numel() == x.numel()
    assert torch.allclose(sums, want.sum(-1), rtol=1e-5)
    for blocks in ([8, 16], [4, 8]):
        assert torch.equal(seeded(with_blocks(_in_loops, blocks), x)[0], want)


def _halves_of_tiles(x):
    out = torch.empty_like(x)
    for outer in hl.tile(x.size(0)):
        for inner in hl.tile(outer.begin, outer.end):
            out[inner] = torch.rand_like(x[inner])
    return out


def _fixed(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=16):
        out[tile] = torch.rand_like(x[tile])
    return out


def _one_a_tile(x):
    out = torch.empty_like(x)
    for i in hl.grid(x.size(0)):
        out[i] = torch.rand([])
    return out


def _static(x):
    out = torch.empty(16, 7)
    for i in hl.grid(16):
        out[i, :] = torch.rand(7)
    return out


@pytest.mark.parametrize("fn", [_halves_of_tiles, _fixed, _one_a_tile, _static])
def test_every_element_has_a_number_of_its_own(fn):
    x = torch.zeros(90)
    out = seeded(helion.kernel(fn), x)
    assert out.unique().numel() == out.numel()


def test_a_loop_over_a_tile_counts_in_the_whole():
    x = torch.zeros(90)
    results = [seeded(with_blocks(_halves_of_tiles, blocks), x) for blocks in ([90, 90], [32, 8], [16, 16])]
    assert all(torch.equal(results[0], r) for r in results)


def _jagged(values, offsets):
    out = torch.zeros_like(values)
    for rows in hl.tile(offsets.size(0) - 1):
        begins = offsets[rows]
        for tile in hl.jagged_tile(offsets[rows.index + 1] - begins):
            at = begins[:, None] + tile.index[None, :]
            hl.store(out, [at], torch.rand_like(hl.load(values, [at])))
    return out


def test_rows_of_different_lengths():
    values, offsets = torch.zeros(60), torch.tensor([0, 20, 20, 27, 60], dtype=torch.int32)
    want = seeded(with_blocks(_jagged, [4, 40]), values, offsets)
    assert want.unique().numel() == 60
    assert torch.equal(seeded(with_blocks(_jagged, [2, 8]), values, offsets), want)


@helion.kernel
def dropped(x: torch.Tensor, p: float, training: bool, inplace: bool) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        part = x[tile, :] + 0
        torch_result = torch.nn.functional.dropout(part, p, training, inplace)
        out[tile, :] = torch_result
    return out


@pytest.mark.parametrize("inplace", [False, True])
def test_dropout_at_the_ends(inplace):
    x = torch.randn(37, 21)
    assert torch.equal(dropped(x, 0.0, True, inplace), x) and torch.equal(dropped(x, 0.9, False, inplace), x)
    assert torch.equal(dropped(x, 1.0, True, inplace).abs(), torch.zeros_like(x))
    out = dropped(x, 0.5, True, inplace)
    assert torch.equal(out[out != 0], (2 * x)[out != 0]) and 0.4 < (out == 0).double().mean() < 0.6
    with pytest.raises((ValueError, CaptureError), match="probability"):
        dropped(x, 1.5, True, inplace)


def test_dropout_rounds_once():
    x = torch.randn(64, 8).to(torch.bfloat16)
    out = dropped(x, 0.1, True, False)
    assert torch.equal(out[out != 0], (x.double() / 0.9).to(torch.bfloat16)[out != 0])


@helion.kernel
def other_forms(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    outs = [torch.empty_like(x) for _ in range(4)]
    for tile in hl.tile(x.size(0)):
        outs[0][tile] = torch.empty_like(x[tile]).bernoulli_(0.25)
        outs[1][tile] = torch.bernoulli(x[tile], 0.75)
        outs[2][tile] = torch.randint_like(x[tile], 10)
        outs[3][tile] = torch.randint(4, [tile], dtype=x.dtype)
    return outs[0], outs[1], outs[2], outs[3]


def test_other_forms():
    torch.manual_seed(2)
    means = [t.mean().item() for t in other_forms(torch.zeros(4000))]
    assert np.allclose(means, [0.25, 0.75, 4.5, 1.5], atol=0.25)


def test_jax_callers_draw_from_torchs_generator_too():
    x = jnp.full((33, 20), 0.5)
    torch.manual_seed(7)
    first, second = every(x), every(x)
    torch.manual_seed(7)
    want = every(torch.full((33, 20), 0.5))
    assert isinstance(first[0], jax.Array) and not jnp.array_equal(first[0], second[0])
    assert all(np.array_equal(np.asarray(a), b.numpy()) for a, b in zip(first, want, strict=True))


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.make_jaxpr])
def test_a_jax_transformation_is_refused(transform):
    with pytest.raises(InputError, match=r"torch's generator(.|\n)*hl\.rand"):
        transform(lambda x: every(x)[0])(jnp.zeros((2, 33, 20)) if transform is jax.vmap else jnp.zeros((33, 20)))


def test_constants_under_jit_are_refused_too():
    x = jnp.zeros((33, 20))
    with pytest.raises(InputError, match="torch's generator"):
        jax.jit(lambda y: every(x)[0] + y)(x)


def test_kernels_that_do_not_draw_pay_nothing(monkeypatch):
    monkeypatch.setattr(generator, "draw", lambda *_: pytest.fail("drawn"))

    @helion.kernel
    def plain(x: torch.Tensor) -> torch.Tensor:
        out = torch.empty_like(x)
        for tile in hl.tile(x.size(0)):
            out[tile] = hl.rand([tile], 3)
        return out

    state = torch.get_rng_state()
    assert plain(jnp.zeros(8)).shape == (8,) and torch.equal(torch.get_rng_state(), state)
    assert len(plain.bind(jnp.zeros(8)).program.params) == 1


def test_it_lowers_and_the_reference_path_and_the_trial_inputs_agree():
    x = torch.full((33, 20), 0.5)
    slot = every.bind(x)
    program = slot.program
    assert codec.decode(codec.encode(program)) == program
    assert [tuple(s.shape) for s in every.lower(x, target="tpu7x").specs] == [(33, 20), (5, 2)]
    assert "seeds" in every.to_pallas(x)
    made = inputs.make(slot.recipe)
    assert made[1].shape == (5, 2) and made[1].dtype == np.int32 and len(np.unique(made[1])) == 10
    want = jax.jit(lowering.reference(program))(*made)
    got = jax.jit(lowering.build(program, Config(block_sizes=[8, 16]), slot.space.target))(*made)
    assert verify.mismatch([np.asarray(a) for a in got], [np.asarray(a) for a in want], verify.tolerance(program)) is None


def test_reference_mode_draws_from_torch():
    torch.manual_seed(1)
    found = every.reference(torch.full((33, 20), 0.25))
    assert abs(found[0].mean().item() - 0.5) < 0.1 and abs((found[4] == 0).double().mean().item() - 0.4) < 0.1


def test_another_kernel_finds_the_stored_program():
    x = torch.full((33, 20), 0.5)
    first = helion.kernel(every.fn)
    want, slot, captures = seeded(first, x), first.bind(x), counters.captures
    for name in slot.aliases:
        slot.tier.put_program(name, codec.encode(slot.program))
    other = helion.kernel(every.fn)
    assert slot.aliases and all(map(torch.equal, seeded(other, x), want)) and counters.captures == captures
    assert not other.bind(x).captured and counters.bad_programs == 0


@pytest.mark.slow
def test_another_process_finds_the_stored_program_and_tunes(tmp_path):
    def run(tune):
        chosen = {"HELION_RT_CACHE_DIR": str(tmp_path), "HELION_RT_TUNE": tune, "HELION_RT_TUNE_SECONDS": "2", "PYTHONPATH": ROOT}
        env = {**os.environ, **chosen}
        command = [sys.executable, str(Path(__file__).with_name("random_program.py"))]
        return json.loads(subprocess.run(command, env=env, check=True, capture_output=True, text=True, timeout=280).stdout.splitlines()[-1])

    first, second = run("background"), run("off")
    assert first["counters"]["captures"] == 1 and first["status"][0]["tuning"] == "done" and first["status"][0]["candidates_tried"] > 0
    assert second["counters"]["captures"] == 0 and second["counters"]["bad_programs"] == 0 and second["counters"]["record_hits"] == 1
    assert np.allclose(first["found"], second["found"], atol=1e-6) and first["found"][0] != first["found"][1]


def _on_host(x):
    noise = torch.rand(x.size(0))
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = noise[tile]
    return out


def _in_while(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        total = x[tile] * 0
        while total.sum() < 100:
            total = total + torch.rand_like(total)
        out[tile] = total
    return out


def _own_generator(x, g=torch.Generator()):  # noqa: B008
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.bernoulli(x[tile], generator=g)
    return out


def _folded(x):
    out = torch.empty_like(x)
    for tile in hl.tile([x.size(0), x.size(1)]):
        out[tile] = torch.rand_like(x[tile].reshape(-1)).reshape(tile[0].block_size, -1)
    return out


def _wide(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = torch.rand([tile], dtype=torch.float64).to(torch.float32)
    return out


@pytest.mark.parametrize(
    ("fn", "kind", "says"),
    [
        (_on_host, Unsupported, "outside of a tile loop"),
        (_in_while, Unsupported, "every round"),
        (_own_generator, Unsupported, "generator"),
        (_folded, Unsupported, "where in a tensor"), (_wide, DTypeError, "float64"),
    ],
)  # fmt: skip
def test_refusals(fn, kind, says):
    with pytest.raises(kind, match=says) as info:
        helion.kernel(fn)(torch.zeros(8, 8) if fn is _folded else torch.zeros(8))
    assert info.value.line
