"""Dispatch: what a call finds, what comes back, what is refused."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import helion_rt as helion
import helion_rt.language as hl
from helion_rt.exc import ConfigError, InputError, PlanError
from helion_rt.runtime.counters import counters
from helion_rt.runtime.slot import Origin, Registry, Tuning, registry


def make_add(**options):
    @helion.kernel(**options)
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Sum."""
        out = torch.empty_like(x)
        for tile in hl.tile(out.size()):
            out[tile] = x[tile] + y[tile]
        return out

    return add


@helion.kernel
def scale(x: torch.Tensor, factor: float = 2.0, *, power: int = 1) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(out.size()):
        out[tile] = x[tile] * factor * power
    return out


@helion.kernel
def both(x: torch.Tensor) -> tuple[torch.Tensor, int, torch.Tensor]:
    low, high = torch.empty_like(x), torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        low[tile] = x[tile] - 1
        high[tile] = x[tile] + 1
    return low, x.size(0), high


@helion.kernel
def bump(x: torch.Tensor) -> None:
    for tile in hl.tile(x.size(0)):
        x[tile] = x[tile] + 1


@helion.kernel
def take(table: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    out = torch.empty([index.size(0)], dtype=table.dtype, device=table.device)
    for tile in hl.tile(index.size(0)):
        out[tile] = table[index[tile]]
    return out


def test_torch_and_jax_callers_get_their_own_kind():
    add = make_add()
    x = torch.randn(40, 24)
    out = add(x, x)
    assert type(out) is torch.Tensor and torch.equal(out, x + x)
    a = jnp.asarray(x.numpy())
    out = add(a, a)
    assert isinstance(out, jax.Array) and np.array_equal(out, a + a)
    assert counters.captures == 1  # the same facts, the same program
    assert [s.calls for s in registry.all() if s.kernel is add] == [2]


def test_each_signature_has_its_slot_and_is_captured_once():
    add = make_add()
    for _ in range(3):
        for n in (8, 9):
            for dtype in (jnp.float32, jnp.bfloat16):
                assert add(jnp.ones((n, 8), dtype), jnp.ones((n, 8), dtype)).dtype == dtype
    slots = [s for s in registry.all() if s.kernel is add]
    assert len(slots) == 4 == counters.captures and [s.calls for s in slots] == [3] * 4
    assert {s.serving.origin for s in slots} == {Origin.DEFAULT}


def test_defaults_keywords_and_scalars_of_the_moment():
    x = jnp.arange(16.0)
    assert np.array_equal(scale(x), x * 2)
    for factor in (3.0, 5.0):
        assert np.array_equal(scale(x, factor), x * factor)
        assert np.array_equal(scale(x=x, factor=factor, power=3), x * factor * 3)
    with pytest.raises(InputError, match="scale"):
        scale(x, 1.0, 2)
    with pytest.raises(InputError, match="missing"):
        scale()
    with pytest.raises(InputError, match="unexpected"):
        scale(x, nothing=1)
    with pytest.raises(InputError, match="does not fit int32"):
        scale(x, 1.0, power=2**40)


def test_outputs_keep_their_tree():
    x = jnp.arange(8.0)
    low, n, high = both(x)
    assert n == 8 and np.array_equal(low, x - 1) and np.array_equal(high, x + 1)
    low, n, high = both(torch.arange(8.0))
    assert n == 8 and torch.equal(low, torch.arange(8.0) - 1) and torch.equal(high, torch.arange(8.0) + 1)


def test_in_place_changes_torchs_tensor_and_returns_jaxs_value():
    t = torch.zeros(8)
    assert bump(t) is None and t.tolist() == [1.0] * 8
    strided = torch.zeros(16)[::2]
    bump(strided)
    assert strided.tolist() == [1.0] * 8
    a = jnp.zeros(8)
    assert np.array_equal(bump(a), jnp.ones(8)) and not a.any()


def test_an_input_overwritten_after_the_call_does_not_change_the_result():
    add = make_add()
    x, y = torch.ones(512, 512), torch.ones(512, 512)
    add(x, y)
    outs = []
    for value in range(5):
        x.fill_(value)
        outs.append(add(x, y))
        x.fill_(1000)
    assert [float(o[0, 0]) for o in outs] == [1, 2, 3, 4, 5]
    assert all(bool((o == o[0, 0]).all()) for o in outs)


def test_int64_indices():
    table = torch.randn(32)
    index = torch.tensor([3, 1, 31, 0, 7, 7, 2, 9])
    assert torch.equal(take(table, index), table[index])
    with pytest.raises(InputError, match="'index' holds 64-bit") as caught:
        take(table, index + 2**33)
    assert caught.value.kernel == "take" and caught.value.file == __file__


def test_empty_tensors():
    add = make_add()
    out = add(torch.zeros(0, 4), torch.zeros(0, 4))
    assert out.shape == (0, 4) and out.dtype is torch.float32
    assert counters.reference_fallbacks == 0


def test_what_is_refused():
    add = make_add()
    before = len(registry.all())
    x = torch.ones(4, 4)
    with pytest.raises(InputError, match="complex64"):
        add(jnp.ones((4, 4), jnp.complex64), jnp.ones((4, 4), jnp.complex64))
    with pytest.raises(InputError, match="float64"):
        add(x.double(), x.double())
    with pytest.raises(InputError, match="torch tensors and JAX arrays"):
        add(x, jnp.ones((4, 4)))
    with pytest.raises(InputError, match="ShapeDtypeStruct"):
        add(jax.ShapeDtypeStruct((4, 4), jnp.float32), jnp.ones((4, 4)))
    with pytest.raises(InputError, match="meta"):
        add(x.to("meta"), x.to("meta"))
    assert len(registry.all()) == before and counters.captures == 0


def test_inside_jit_vmap_scan_and_grad_of_the_rest():
    add = make_add()
    x = jnp.arange(32.0).reshape(4, 8)
    assert np.array_equal(jax.jit(lambda a: add(a, a) * 2)(x), x * 4)
    assert np.array_equal(jax.vmap(lambda a: add(a, a))(jnp.stack([x, x + 1])), jnp.stack([x, x + 1]) * 2)
    assert np.array_equal(jax.lax.scan(lambda c, _: (add(c, c), None), x, None, length=3)[0], x * 8)
    assert jax.eval_shape(add, x, x).shape == (4, 8)


def test_decorator_forms_and_metadata():
    add = make_add()
    assert add.__name__ == "add" and add.__doc__ == "Sum." and isinstance(add, helion.Kernel)
    with pytest.raises(ConfigError, match="unknown setting 'autotune_efort'"):
        make_add(autotune_efort="none")
    with pytest.raises(ConfigError, match="decorates a function"):
        helion.kernel(3)

    class Model:
        kernel = add

    assert Model().kernel.func is add and Model.kernel is add


def test_forced_config_is_used_and_not_tuned(monkeypatch):
    monkeypatch.setenv("HELION_RT_TUNE", "background")
    add = make_add(config=helion.Config(block_sizes=[16, 8], num_warps=4))
    x = jnp.ones((32, 8))
    assert np.array_equal(add(x, x), x * 2)
    slot = add.bind(x, x)
    assert slot.serving.origin is Origin.FORCED and slot.serving.config.block_sizes == [16, 8] and slot.tuning is Tuning.OFF
    with pytest.raises(ConfigError, match="1 block_sizes, the kernel has 2"):
        make_add(config={"block_sizes": [16]})(x, x)


@pytest.mark.parametrize("shape", [(0, 8), (8, 0), (0, 0)])
def test_forced_config_and_nothing_to_compute(shape):
    add = make_add(config=helion.Config(block_sizes=[16, 8]))
    assert add(jnp.ones(shape), jnp.ones(shape)).shape == shape


def test_lower_and_to_pallas_take_shapes_and_meta():
    add = make_add()
    spec = jax.ShapeDtypeStruct((256, 256), jnp.float32)
    meta = torch.empty(256, 256, device="meta")
    assert "pallas_call" in add.to_pallas(spec, spec)
    assert add.to_pallas(meta, meta, target="tpu7x") == add.to_pallas(spec, spec, target="tpu7x")
    lowered = add.lower(spec, spec, target="tpu7x", config=helion.Config(block_sizes=[64, 128]))
    assert lowered.config.block_sizes == [64, 128] and "64" in lowered.source


def test_a_swap_under_calls_from_many_threads_never_gives_a_wrong_answer():
    from helion_rt.runtime import prepare

    add = make_add()
    x = jnp.arange(64.0).reshape(8, 8)
    slot = add.bind(x, x)
    add(x, x)
    wrong, stop = [], threading.Event()

    def call():
        while not stop.is_set():
            if not np.array_equal(add(x, x), x * 2):
                wrong.append(1)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for size in (8, 4, 2, 8):
        prepare.serve(slot, helion.Config(block_sizes=[size, 8]), Origin.TUNED)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and slot.serving.generation == 4 and slot.serving.config.block_sizes == [8, 8]


def test_the_least_recently_used_slots_go():
    add = make_add()
    arrays = [jnp.ones((n, 8)) for n in range(1, 6)]
    slots = [add.bind(a, a) for a in arrays]
    for a in arrays:
        add(a, a)
    small = Registry(limit=4)
    for number, slot in enumerate(slots):
        slot.used = -number  # the last is the oldest, but the newcomer stays
        small.add(slot)
    assert small.evicted == 1 and slots[3] not in small.all() and slots[4] in small.all()
    captures = counters.captures
    assert np.array_equal(add(arrays[3], arrays[3]), arrays[3] * 2)  # made anew
    assert add.bind(arrays[3], arrays[3]) is not slots[3] and add.bind(arrays[0], arrays[0]) is slots[0]
    assert counters.captures >= captures


def test_a_default_that_does_not_compile_falls_to_smaller_ones_then_to_the_reference(monkeypatch):
    from helion_rt.tuning import executable

    real = executable.function

    def picky(program, config, target):
        if config is not None and config.block_sizes[0] > limit:
            raise RuntimeError("too large")
        return real(program, config, target)

    monkeypatch.setattr(executable, "function", picky)
    x = jnp.ones((64, 64))
    limit = 32
    add = make_add()
    assert np.array_equal(add(x, x), x * 2)
    slot = add.bind(x, x)
    assert slot.serving.origin is Origin.DEFAULT and slot.serving.config.block_sizes[0] <= 32 and counters.default_failures >= 1
    limit = 0
    add = make_add()
    with pytest.warns(helion.exc.HelionRtWarning, match="slow reference path"):
        assert np.array_equal(add(x, x), x * 2)
    assert add.bind(x, x).serving.origin is Origin.REFERENCE and counters.reference_fallbacks == 1


def test_an_executable_that_fails_at_run_time_is_replaced_by_the_reference():
    add = make_add()
    x = jnp.ones((16, 16))
    slot = add.bind(x, x)
    add(x, x)

    def broken(*arrays):
        raise RuntimeError("the chip is unwell")

    slot.serve(broken, broken, slot.serving.config, Origin.TUNED)
    assert np.array_equal(add(x, x), x * 2)
    assert counters.rescues == 1 and slot.serving.origin is Origin.DEFAULT  # what a winner took the place of
    slot.serve(broken, broken, slot.serving.config, Origin.DEFAULT)
    with pytest.warns(helion.exc.HelionRtWarning):
        assert np.array_equal(add(x, x), x * 2)
    assert counters.rescues == 2 and slot.serving.origin is Origin.REFERENCE


@helion.kernel
def shift(x: torch.Tensor, by: int = 1) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile] = x[tile] + by
    return out


def test_numbers_under_a_trace_and_with_x64():
    x = jnp.arange(8.0)
    assert np.array_equal(jax.jit(lambda a: shift(a, 3))(x), x + 3)
    assert np.array_equal(jax.jit(scale)(x, 3.0), x * 3)
    with jax.enable_x64(True):
        assert np.array_equal(shift(x, 3), x + 3) and shift(x, 3).dtype == jnp.float32
        assert np.array_equal(scale(x, 3.0), x * 3)
        assert torch.equal(shift(torch.arange(8), 2), torch.arange(8) + 2)
        with pytest.raises(InputError, match="cannot be checked") as caught:
            jax.jit(shift)(jnp.arange(8))
        assert caught.value.kernel == "shift"
    assert counters.rescues == 0


def test_under_disable_jit_the_same_executable_serves():
    add = make_add()
    x = jnp.ones((8, 8))
    with jax.disable_jit():
        assert np.array_equal(add(x, x), x * 2) and np.array_equal(add(x, x), x * 2)
    slot = add.bind(x, x)
    assert slot.serving.origin is Origin.DEFAULT and slot.calls == 2 and counters.rescues == 0


def test_a_tensor_that_torch_will_not_write_is_the_callers_fault_and_changes_nothing():
    narrow = torch.zeros(1).expand(6)
    with pytest.raises(InputError, match="argument 'x', which the kernel writes") as caught:
        bump(narrow)
    assert caught.value.kernel == "bump" and caught.value.hint == "pass x.clone()"
    assert bump.bind(narrow).serving.origin is Origin.DEFAULT and counters.rescues == 0


def test_what_leads_to_forgotten_slots_goes_too():
    add = make_add()
    slots = []
    for n in (1, 2, 3):
        add(jnp.ones((n, 8)), jnp.ones((n, 8)))
        slots.append(add.bind(jnp.ones((n, 8)), jnp.ones((n, 8))))
    add.forget(slots[:2])
    assert len(add._families) == len(add._routes) == 1
    for value in np.linspace(0, 1, 5):  # a float, but of a type of its own
        scale(jnp.ones(8), value)
    assert sum(np.float64 in key for key in scale._routes) <= 1


def test_a_stored_program_that_means_nothing_is_captured_again(monkeypatch):
    from helion_rt.program import codec
    from helion_rt.runtime import prepare

    x = jnp.ones((8, 8))
    add = make_add()
    add(x, x)
    helion.wait_for_tuning(60)
    slot = add.bind(x, x)
    (alias, *_) = slot.aliases
    other = make_add()
    other(jnp.ones((4, 8)), jnp.ones((4, 8)))
    slot.tier.put_program(alias, codec.encode(other.bind(jnp.ones((4, 8)), jnp.ones((4, 8))).program))
    again = make_add()
    assert np.array_equal(again(x, x), x * 2) and again.bind(x, x).captured and counters.bad_programs == 1

    slot.tier.put_program(alias, codec.encode(slot.program))
    real = prepare.Space

    def picky(program, target, configs):
        if counters.captures == before:
            raise KeyError("no such operation")
        return real(program, target, configs)

    before = counters.captures
    monkeypatch.setattr(prepare, "Space", picky)
    again = make_add()
    assert np.array_equal(again(x, x), x * 2) and again.bind(x, x).captured and counters.bad_programs == 2


def test_a_no_candidate_record_of_another_space_or_of_other_configs_is_no_verdict():
    from helion_rt.database import Evidence, EvidenceKind, Record, Status
    from helion_rt.runtime import prepare
    from helion_rt.runtime.standing import Standing
    from helion_rt.tuning.space import SPACE_VERSION

    x = jnp.ones((16, 16))
    slot = make_add().bind(x, x)
    evidence = Evidence(EvidenceKind.MEASURED)
    for version, used in ((SPACE_VERSION + 1, False), (SPACE_VERSION, True)):
        record = Record(slot.key, "add", Status.NO_CANDIDATE, {}, version, evidence, {})
        assert (prepare.adopt(slot, record) is not Standing.MISS) is used
    configs = [helion.Config(block_sizes=[8, 16]), helion.Config(block_sizes=[16, 8])]
    keys = {make_add(configs=c).bind(x, x).key.digest for c in (configs, configs[::-1], [*configs, helion.Config(block_sizes=[8, 8])])}
    assert len(keys) == 2 and slot.key.digest not in keys


def test_a_kernel_with_another_dot_precision_is_another_program():
    def make(precision):
        @helion.kernel(dot_precision=precision)
        def dot(x, y):
            out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype)
            for m, n in hl.tile(out.size()):
                out[m, n] = hl.dot(x[m, :], y[:, n])
            return out

        return dot

    x = jnp.ones((8, 8))
    aliases = set()
    for precision in ("ieee", "tf32"):
        dot = make(precision)
        assert np.array_equal(dot(x, x), jnp.full((8, 8), 8.0))
        helion.wait_for_tuning(60)
        aliases |= set(dot.bind(x, x).aliases)
    assert len(aliases) == 2


def test_log_level_reaches_the_logger(monkeypatch, capsys):
    import logging

    from helion_rt.runtime import log
    from helion_rt.settings import LogLevel

    logger = logging.getLogger("helion_rt")
    monkeypatch.setattr(logger, "level", logger.level)
    monkeypatch.setattr(logger, "handlers", [])
    monkeypatch.setattr(logger, "propagate", False)
    log.set_up.cache_clear()
    log.set_up(LogLevel.WARNING)
    assert not logger.handlers
    log.set_up(LogLevel.INFO)
    logging.getLogger("helion_rt.tuning").info("a candidate")
    assert capsys.readouterr().err == "INFO helion_rt.tuning: a candidate\n"
    log.set_up.cache_clear()


@helion.kernel
def _squares_of_a_fixed_tile(x):
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0), block_size=64):
        out[tile] = (x[tile].reshape(8, 8) * 2.0).reshape(64)
    return out


def test_a_kernel_that_no_path_can_run_says_why_at_its_line() -> None:
    """A ragged last tile cannot be reshaped: neither by Pallas nor by the reference path."""
    assert torch.equal(_squares_of_a_fixed_tile(torch.ones(128)), torch.full((128,), 2.0))
    with pytest.raises(PlanError, match="reshape") as caught:
        _squares_of_a_fixed_tile(torch.ones(130))
    assert caught.value.line is not None
