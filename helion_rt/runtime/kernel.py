"""``kernel``: the decorator, and the object it makes. The hot path is here: facts -> one look-up -> the executable."""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import itertools
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import jax
from jax.core import Tracer

from helion_rt import lowering, targets
from helion_rt.capture import reach
from helion_rt.config import Config
from helion_rt.exc import ConfigError, HelionError, InputError, NoGradient
from helion_rt.program.ir import ArgKind, Program, Ref, output_leaves
from helion_rt.program.signature import Fact
from helion_rt.settings import Settings, TuneMode

from . import aliasing, buckets, door, generator, gradients, prepare, probes
from . import facts as call_facts
from .counters import counters
from .slot import Origin, Serving, Slot, registry

if TYPE_CHECKING:
    from helion_rt.lowering.stages import Lowered
    from helion_rt.targets import Target


@dataclass(slots=True)
class Family:
    """The slots of one tuple of facts: more than one where the program is specialised to values of numbers or of tensors."""

    paths: tuple[tuple[Any, ...], ...] = ()
    readers: tuple[probes.Reader, ...] = ()
    slots: dict[tuple[Any, ...], Slot] = field(default_factory=dict)
    recent: tuple[Any, Slot] | None = None  # the one specialised value that was seen last, and its slot

    def find(self, args: Sequence[Any]) -> Slot | None:
        recent = self.recent
        if recent is not None and args[self.paths[0][0]] is recent[0]:  # a default, as good as always: the very same object
            return recent[1]
        slot = self.slots.get(self.key(args))
        if slot is not None and len(self.paths) == 1 and len(self.paths[0]) == 1 and not self.readers:
            self.recent = (args[self.paths[0][0]], slot)
        return slot

    def key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The values that tell this family's slots apart. On the hot path: no generator, no call but for odd floats."""
        values = [args[path[0]] if len(path) == 1 else call_facts.at(args, path) for path in self.paths]
        values = [v if v.__class__ is not float or (v and v == v) else repr(v) for v in values]
        return tuple(values) if not self.readers else (*values, *[reader.key(args) for reader in self.readers])

    def widen(self, program: Program, paths: tuple[tuple[Any, ...], ...]) -> bool:
        """Tell the slots apart by what ``program`` is specialised to, too. Is that new? Then the old slots cannot be found any more."""
        readers = {r.program: r for r in (*self.readers, *(probes.reader(p.program) for p in program.probes))}
        if set(paths) <= set(self.paths) and len(readers) == len(self.readers):
            return False
        for old in self.slots.values():
            registry.drop(old)
        self.paths, self.readers = tuple(sorted({*self.paths, *paths}, key=repr)), tuple(readers.values())
        self.slots, self.recent = {}, None
        return True

    def evict(self) -> list[Slot]:
        """The slots that are too many: values of tensors have no end."""
        if not self.readers or len(self.slots) <= probes.SLOTS_BY_VALUE:
            return []
        return sorted(self.slots.values(), key=lambda slot: slot.used)[: max(1, probes.SLOTS_BY_VALUE // 8)]


@dataclass(slots=True)
class Route:
    """What the hot path finds: the slot, and what must happen to the arguments and the outputs around the executable."""

    family: Family
    slot: Slot | None  # None: look in the family by value
    pick: tuple[int, ...] | None  # which arguments the executable takes as they are; None: through the door
    every: bool  # all of them
    single: bool  # the kernel returns one array


class Kernel:
    """A kernel. Call it with torch tensors or JAX arrays; under a JAX transformation it is traced into the caller.

    Keyword arguments and defaults work as in Python. Outputs have a gradient if there is a ``backward=``. A tensor that the
    kernel writes in place changes for a torch caller; for a JAX caller, a kernel that returns nothing returns the new contents
    instead.
    """

    def __init__(
        self, fn: Callable[..., Any], config: Config | None, configs: Sequence[Config], options: dict[str, Any],
        backward: Callable[..., Any] | None = None, save_outputs: bool = False, dynamic: Mapping[str, Sequence[int]] | None = None,
    ) -> None:  # fmt: skip
        self.fn = fn
        self.name: str = fn.__name__
        self.config = config
        self.configs = tuple(configs)
        # What hl.register_tunable gives: it is part of the program, so there is one of it for all configs.
        self.tunables = {} if config is None and not configs else dict((config or configs[0]).own)
        self._options = options
        self._signature = inspect.signature(fn)
        parameters = self._signature.parameters
        self._names = tuple(parameters)
        self._defaults = {n: p.default for n, p in parameters.items() if p.default is not p.empty}
        kinds = [p.kind for p in parameters.values()]
        self._positional = sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
        if inspect.Parameter.VAR_POSITIONAL in kinds:
            self._positional = -1  # always bound by inspect
        variadic = kinds.index(inspect.Parameter.VAR_POSITIONAL) if self._positional < 0 else None
        self.backward = None if backward is None else gradients.Backward(backward, save_outputs, variadic)
        # For a call with n positional arguments alone: the defaults that follow them.
        self._tails: dict[int, tuple[Any, ...]] = {}
        for n in range(len(self._names), -1, -1):
            rest = self._names[n:]
            if self._positional == len(self._names) and all(name in self._defaults for name in rest):
                self._tails[n] = tuple(self._defaults[name] for name in rest)
        self._routes: dict[tuple[Any, ...], Route] = {}
        self._families: dict[tuple[Any, ...], Family] = {}
        self._opens = self._opens_self = False  # do arguments, does the function itself, reach arrays that are no arguments?
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn)
        if inspect.Parameter.VAR_KEYWORD in kinds:
            raise ConfigError("a kernel cannot take **kwargs", **self.place(), hint="name the parameters")
        self.dynamic = buckets.checked(dynamic or {}, self._names, self.place())
        self.bucket_programs = buckets.Programs()
        self.settings  # noqa: B018  a wrong setting is refused where it is written

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters."""
        return self._names

    @property
    def settings(self) -> Settings:
        """The process' settings with this kernel's own over them."""
        return Settings.from_env().for_kernel(self._options, **self.place())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        tail = None if kwargs else self._tails.get(len(args))
        args = self._plain(*args, **kwargs) if tail is None else args + tail
        if self._opens:
            args = self._reach(args)
        if self.backward is not None and (leaves := gradients.required(args[: len(self._names)])):
            return gradients.torch_call(self, args, leaves)
        return self.serve(args)

    def serve(self, args: tuple[Any, ...]) -> Any:
        """The call itself; ``args`` are bound, what they reach is open, nothing asks for a gradient."""
        try:
            route = self._routes.get(call_facts.hot_key(args))
        except (KeyError, TypeError, RuntimeError):  # tracers, what cannot be hashed, torch's nested tensors
            route = None
        if route is None:
            return self._first_call(args)
        slot = route.slot or route.family.find(args)
        if slot is None:
            return self._first_call(args)
        slot.used = time.monotonic()
        if route.pick is None:
            return self._through_door(slot, args)
        serving = slot.serving
        serving.tally.calls += 1
        arrays = args if route.every else [args[i] for i in route.pick]
        try:
            out = serving.executable(*arrays)
        except Exception as error:
            return self._rescue(slot, serving, args, arrays, error)
        return out[0] if route.single else _for_jax(slot.program, out)

    def reference(self, *args: Any, **kwargs: Any) -> Any:
        """The kernel's own source run eagerly in torch, tile by tile: for ``print`` and ``pdb``. Nothing is captured or compiled.

        Results have the shapes and dtypes of a call, and are the caller's kind (torch tensors or JAX arrays). Raises ``InputError``
        under a JAX transformation, ``Unsupported`` for what this mode cannot say, and whatever the kernel itself raises.
        """
        return self._eagerly(self._plain(*args, **kwargs))

    def _eagerly(self, bound: tuple[Any, ...]) -> Any:
        from . import eagerly  # late: for debugging only

        try:
            return eagerly.call(self, self._signature, bound[: len(self._names)])
        except InputError as error:
            raise self._placed(error) from error.__cause__

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __repr__(self) -> str:
        return f"<helion_rt kernel {self.fn.__module__}.{self.fn.__qualname__}>"

    def bind(self, *args: Any, **kwargs: Any) -> Slot:
        """The slot that serves these arguments (arrays or shape-likes), made now if it is new. ``slot.serving`` is what runs."""
        slot, _ = self._slot(self.bound(*args, **kwargs))
        return slot

    def bound(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """The arguments in the order of the parameters, defaults filled in. Raises ``InputError`` where they do not fit.

        Callables are opened (see ``capture.reach``); a function that reaches arrays itself is the last one, opened.
        """
        return self.look_inside(self._plain(*args, **kwargs))

    def look_inside(self, plain: tuple[Any, ...]) -> tuple[Any, ...]:
        """``plain`` with all that is reached; the calls to come know whether to look."""
        if not self._opens_self and len(reach.opened(inspect.unwrap(self.fn))) > 1:
            self._opens = self._opens_self = True
        args = self._reach(plain)
        self._opens = self._opens or args is not plain
        return args

    def _reach(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        args = call_facts.open_callables(args)
        if self._opens_self and len(args) == len(self._names):
            own = reach.opened(inspect.unwrap(self.fn))
            args = (*args, own) if len(own) > 1 else args
        return args

    def _plain(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        if len(args) <= self._positional and kwargs.keys() <= {*self._names[len(args) :]}:
            try:  # many times quicker than inspect's
                return (*args, *(kwargs[n] if n in kwargs else self._defaults[n] for n in self._names[len(args) :]))
            except KeyError:
                pass  # an argument is missing: inspect says it best
        try:
            return call_facts.bind(self._signature, self.name, args, kwargs)
        except InputError as error:
            raise self._placed(error) from None

    def facts(self, bound: Sequence[Any]) -> tuple[Fact, ...]:
        """The facts of bound arguments. Raises ``InputError`` for what a kernel cannot take."""
        return tuple(call_facts.fact_of(name, value) for name, value in zip((*self._names, ""), bound, strict=False))

    def lower(self, *args: Any, target: Target | str | None = None, config: Config | None = None, **kwargs: Any) -> Lowered:
        """Lower for ``target`` (a name; by default that of JAX's backend). Arguments may be arrays of torch or JAX, meta tensors
        or ``jax.ShapeDtypeStruct``; nothing runs. ``config``: by default the kernel's own, else the winner that the database
        has for these arguments and that target, else the safe default."""
        program, chosen, aimed = self._at(args, kwargs, target, config)
        return lowering.lower(program, chosen, aimed)

    def to_pallas(self, *args: Any, target: Target | str | None = None, config: Config | None = None, **kwargs: Any) -> str:
        """Pallas source of the kernel that runs with only JAX installed. Arguments as for ``lower``."""
        program, chosen, aimed = self._at(args, kwargs, target, config)
        return lowering.generate(program, chosen, aimed)

    def program_of(self, bound: tuple[Any, ...]) -> Program:
        """The program that serves bound arguments. Raises ``InputError`` for what no call can have."""
        try:
            self._refuse(bound)
            return self._slot(self.look_inside(bound))[0].program
        except InputError as error:
            raise self._placed(error) from None

    def at_bucket(self, bound: tuple[Any, ...]) -> tuple[Any, ...]:
        """Bound arguments with their dynamic extents rounded up: what is tuned for them (see ``buckets``)."""
        rounded = buckets.rounded(self, bound)
        return bound if rounded is None else rounded

    def error(self, kind: type[HelionError], message: str, hint: str | None = None) -> Any:
        """An error of class ``kind`` about this kernel."""
        return kind(message, **self.place(), hint=hint)

    def forget(self, slots: Collection[Slot]) -> None:
        """Drop slots, with their executables and all that leads to them; the next call makes them anew."""
        gone = set(map(id, slots))
        with self._lock:
            for family in self._families.values():
                family.slots, family.recent = {k: s for k, s in family.slots.items() if id(s) not in gone}, None
            self._families = {facts: family for facts, family in self._families.items() if family.slots}
            self._routes = {k: r for k, r in self._routes.items() if id(r.slot) not in gone and r.family.slots}

    def _at(self, args: Any, kwargs: Any, target: Any, config: Config | None) -> tuple[Program, Config, Target]:
        aimed = targets.detect() if target is None else targets.get(target)
        found, key, tier, _ = prepare.find(self, self.bound(*args, **kwargs), aimed)
        space = prepare.Space(found.program, aimed, self.configs)
        chosen = config or self.config
        if chosen is None:
            return found.program, prepare.config_of(found, space, tier.get(key)) or space.default(), aimed
        chosen = space.complete(chosen)
        space.check(chosen)
        return found.program, chosen, aimed

    def _first_call(self, bound: tuple[Any, ...]) -> Any:
        """The slow path: arguments that were not seen before, tracers, and kinds that are refused."""
        if self.settings.reference:
            return self._eagerly(bound)
        try:
            self._refuse(bound)
            bound = self.look_inside(bound)
            self._warn_of_gradients(bound)
            with _collection_deferred():
                slot, family = self._slot(bound)
        except InputError as error:
            raise self._placed(error) from None
        if slot.settings.record_keys is not None and not slot.submitted:
            from . import recording  # late: for those who ask for it

            slot.asked = recording.asked(self, bound, slot)
        if slot.settings.tune is TuneMode.SYNC:
            self.submit(slot)
            slot.done.wait()
        try:
            if call_facts.is_traced(bound):
                slot.traced = True
                serving = slot.serving
                arrays = self._arrays(slot, bound)
                serving.tally.calls += 1
                function = gradients.batchable(serving.function, serving.config, slot.space.target)
                function = gradients.for_jax(self, slot.program, function, bound)
                return _for_jax(slot.program, function(*arrays))
            self._remember(bound, slot, family)
            return self._through_door(slot, bound)
        finally:
            self.submit(slot)

    def submit(self, slot: Slot) -> None:
        """Hand a new slot to the tuner, once. In background mode after the first call, so that it never waits for anything."""
        with self._lock:
            if slot.submitted:
                return
            slot.submitted = True
        if slot.unstored or slot.wants_tuning or slot.asked is not None:
            from .background import tuner  # late: a warm process needs no tuner

            tuner.submit(slot)
        else:
            slot.done.set()  # a warm process has nothing to store and nothing to tune: no thread, no import

    def _slot(self, bound: tuple[Any, ...]) -> tuple[Slot, Family]:
        """The slot of these arguments, made if it is new."""
        facts = self.facts(bound)
        with self._lock:
            family = self._families.setdefault((facts, prepare.numerics()), Family())
            slot = family.find(bound)
            new = slot is None
            if slot is None:
                slot = prepare.make_slot(self, bound)
                paths = prepare.static_paths(slot.program, facts)
                if family.widen(slot.program, paths):
                    self._routes = {k: r for k, r in self._routes.items() if r.family is not family}
                for old in family.evict():
                    registry.drop(old)
                    family.slots = {k: s for k, s in family.slots.items() if s is not old}
                family.slots[family.key(bound)] = slot
        if new:
            registry.add(slot)  # without the lock: it may make another kernel, with a lock of its own, forget slots
        return slot, family

    def _remember(self, bound: tuple[Any, ...], slot: Slot, family: Family) -> None:
        """Make the route by which the next call with such arguments finds the slot."""
        params = slot.program.array_params
        direct = all(len(p.path) == 1 and _is_as_is(p.kind, call_facts.at(bound, p.path)) for p in params)
        # A kernel of numbers alone has nobody to say that it wants JAX arrays; a torch caller's numbers go with its tensors.
        direct = direct and not any(map(door.is_torch, call_facts.leaves_of(bound)))
        pick = tuple(int(p.path[0]) for p in params) if direct else None
        single = isinstance(slot.program.outputs, Ref) and not slot.program.mutated
        route = Route(family, None if family.paths or family.readers else slot, pick, pick == tuple(range(len(bound))), single)
        try:
            self._routes[call_facts.hot_key(bound)] = route
        except (KeyError, TypeError):
            return  # an argument that cannot be looked up by: it takes the slow path every time

    def _refuse(self, bound: tuple[Any, ...]) -> None:
        """Raise ``InputError`` for arguments that no call can have; before anything is captured for them."""
        kinds = set()
        for name, value in zip(self._names, bound, strict=False):  # without what the function itself reaches
            for leaf in call_facts.leaves_of(value):
                if door.is_torch(leaf):
                    kinds.add("torch")
                    door.check_tensor(leaf, name)
                elif isinstance(leaf, jax.Array):
                    kinds.add("jax")
                elif isinstance(leaf, jax.ShapeDtypeStruct):
                    raise InputError(
                        f"argument '{name}' is a jax.ShapeDtypeStruct, which has no values", hint=f"use {self.name}.lower(...)"
                    )
        if len(kinds) == 2:
            raise InputError("torch tensors and JAX arrays in one call", hint="convert one kind, e.g. with torch.from_dlpack(array)")

    def _warn_of_gradients(self, bound: tuple[Any, ...]) -> None:
        gradients.warn_of_reached(self, bound, stacklevel=6)
        if self.backward is None and gradients.required(bound[: len(self._names)]) and NoGradient not in self.settings.ignore_warnings:
            message = f"an argument of kernel '{self.name}' requires grad, but the kernel has no backward=: its outputs carry no gradient"
            warnings.warn(message, NoGradient, stacklevel=5)

    def _placed(self, error: InputError) -> InputError:
        return InputError(error.message, **{**self.place(), "hint": error.hint})

    def _arrays(self, slot: Slot, args: Sequence[Any]) -> list[Any]:
        """What the executable takes. Raises ``InputError`` for values that the device cannot hold."""
        try:
            return [
                generator.draw(slot.program, p, args) if p.kind is ArgKind.SEEDS else _enter(p.name, p.kind, call_facts.at(args, p.path))
                for p in slot.program.array_params
            ]
        except InputError as error:
            raise self._placed(error) from None

    def _refuse_shared(self, program: Program, args: tuple[Any, ...]) -> None:
        """Raise ``InputError`` if a torch tensor that is written shares elements with another argument: what is read is a copy."""
        tensors = [(i, p.name, call_facts.at(args, p.path)) for i, p in enumerate(program.params) if p.kind is ArgKind.TENSOR]
        tensors = [entry for entry in tensors if door.is_torch(entry[2])]
        written = {index for index, _ in program.mutated}
        for i, name, tensor in tensors:
            for j, other_name, other in tensors:
                if i in written and i != j and not (j in written and j < i) and aliasing.share_elements(tensor, other):
                    message = f"arguments '{name}' and '{other_name}' share elements, and the kernel writes '{name}'"
                    raise self._placed(InputError(message, hint=f"pass {other_name}.clone(), or write to a new tensor"))

    def _through_door(self, slot: Slot, args: tuple[Any, ...]) -> Any:
        arrays = self._arrays(slot, args)
        torch_side = any(map(door.is_torch, call_facts.leaves_of(args)))
        if torch_side and slot.program.mutated:
            self._refuse_shared(slot.program, args)
        serving = slot.serving
        serving.tally.calls += 1
        try:
            out = serving.executable(*arrays)
            if torch_side:
                jax.block_until_ready(out)  # a failure of the device shows here
        except Exception as error:
            return self._rescue(slot, serving, args, arrays, error)
        if not torch_side:
            return _for_jax(slot.program, out)
        try:
            return _for_torch(slot.program, args, arrays, out)
        except InputError as error:
            raise self._placed(error) from error.__cause__

    def _rescue(self, slot: Slot, serving: Serving, args: tuple[Any, ...], arrays: Sequence[Any], error: Exception) -> Any:
        """A call whose executable failed: arrays that live elsewhere are the caller's right, the rest goes to the reference path."""
        if call_facts.jit_is_disabled():  # no executable runs then; what it computes is not Python that anybody could step through
            serving.tally.calls -= 1
            with jax.disable_jit(False):
                return self(*args)
        if any(getattr(a, "is_deleted", bool)() for a in arrays):
            raise error
        default = {jax.local_devices()[0]}
        if any(isinstance(a, jax.Array) and a.devices() != default for a in arrays):
            return _for_jax(slot.program, jax.jit(serving.function)(*arrays))
        if serving.origin in (Origin.REFERENCE, Origin.FORCED):
            raise error
        counters.rescues += 1
        prepare.rescue(slot, serving, error)
        return self._through_door(slot, args)

    def place(self) -> dict[str, Any]:
        """Its name and where it is, as errors tell them."""
        code = getattr(inspect.unwrap(self.fn), "__code__", None)
        return {"kernel": self.name, "file": code.co_filename if code else None, "line": code.co_firstlineno if code else None}


def _is_as_is(kind: ArgKind, value: Any) -> bool:
    """Does an executable take it without a look at its value? Integers are checked to fit 32 bits, 64-bit arrays too."""
    if kind is ArgKind.SCALAR:
        return isinstance(value, float) and not call_facts.jax_numerics()[0]
    return isinstance(value, jax.Array) and value.dtype != door.WIDE_DTYPE


def _enter(name: str, kind: ArgKind, value: Any) -> Any:
    if kind is ArgKind.SCALAR:
        if isinstance(value, int):
            call_facts.check_int(name, value)
        # With x64 on JAX would make 64 bits of a Python number.
        return call_facts.narrow_number(value) if call_facts.jax_numerics()[0] else value
    if isinstance(value, Tracer):
        if value.dtype == door.WIDE_DTYPE:
            raise InputError(
                f"argument '{name}' is {value.dtype} under a JAX transformation: its values cannot be checked", hint="pass .astype('int32')"
            )
        door.check_dtype(name, value.dtype.name)
        return value
    if isinstance(value, jax.Array):
        return door.from_jax(value, name)
    return door.from_torch(value, name) if door.is_torch(value) else door.from_numpy(value, name)


def _fill(tree: Any, leaves: Any) -> Any:
    """The output tree with its Refs replaced, depth first."""
    if isinstance(tree, Ref):
        return next(leaves)
    return tuple(_fill(item, leaves) for item in tree) if isinstance(tree, tuple) else tree


def _for_jax(program: Program, out: Sequence[Any]) -> Any:
    if program.outputs is None and program.mutated:
        return out[0] if len(out) == 1 else tuple(out)
    return _fill(program.outputs, iter(out))


def _for_torch(program: Program, args: Sequence[Any], arrays: Sequence[Any], out: Sequence[Any]) -> Any:
    refs = [*output_leaves(program.outputs), *(ref for _, ref in program.mutated)]
    tensors = door.to_torch(out, arrays, [program.type_of(ref).dtype for ref in refs])
    returned = len(refs) - len(program.mutated)
    written = {}
    for (index, ref), new in zip(program.mutated, tensors[returned:], strict=True):
        original = call_facts.at(args, program.params[index].path)
        door.write_back(original, new, program.params[index].name)
        written[ref.id] = original
    # A kernel that returns the argument it wrote returns that very tensor.
    return _fill(program.outputs, iter([written.get(ref.id, t) for ref, t in zip(refs[:returned], tensors, strict=False)]))


@contextlib.contextmanager
def _collection_deferred() -> Iterator[None]:
    """No garbage collection inside: tracing makes many objects and little garbage, and a full collection of a process that
    holds torch and JAX takes 0.3 s; it can wait until the call has its result."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        _promote()
        gc.enable()


# How many first calls of a process make their objects old ones: those are the calls that import and fill caches.
_PROMOTIONS = 16
_promotions = itertools.count()


def _promote() -> None:
    """Makes every object an old one, without looking at any: what the first calls leave, modules above all, is there to stay.

    Otherwise the young collections walk over all of it twice, 0.1 s each time, and the second of them falls into the second
    call. Not for ever: what is old and garbage waits for a full collection.
    """
    if next(_promotions) < _PROMOTIONS and not gc.get_freeze_count():  # what the user froze stays frozen
        gc.freeze()
        gc.unfreeze()


def kernel(
    fn: Callable[..., Any] | None = None,
    *,
    config: Config | dict[str, Any] | None = None,
    configs: Sequence[Config | dict[str, Any]] | None = None,
    backward: Callable[..., Any] | None = None,
    save_outputs: bool = False,
    dynamic: Mapping[str, Sequence[int]] | None = None,
    **settings: Any,
) -> Any:
    """Make a kernel of a function in Helion's language: ``@kernel``, or with arguments.

    ``config`` is used as it is and nothing is tuned; ``configs`` are the only ones that the tuner may choose from, beside the
    default. ``backward(*grads, *args)`` gives the gradients, with ``save_outputs`` ``backward(*grads, *outputs, *args)`` (see
    ``gradients``). ``dynamic={"x": (0,)}``: the dimensions whose extents vary, by parameter; they are rounded up before a record is
    looked for, so that near extents are tuned once (see ``buckets``). ``settings``: see ``Settings``. Raises ``ConfigError`` for a
    setting that does not exist, a ``backward`` that cannot be called, a ``dynamic`` that names no parameter, a kernel with
    ``**kwargs``, and for what is no function.
    """
    if fn is None:
        return functools.partial(
            kernel, config=config, configs=configs, backward=backward, save_outputs=save_outputs, dynamic=dynamic, **settings
        )
    if not inspect.isfunction(fn):
        raise ConfigError(f"@helion_rt.kernel decorates a function, not {type(fn).__name__}")
    listed = [c if isinstance(c, Config) else Config.from_dict(c) for c in configs or ()]
    one = config if isinstance(config, Config) or config is None else Config.from_dict(config)
    if len(listed) == 1 and one is None:  # Helion's rule: one config is a forced one
        one, listed = listed[0], []
    if backward is not None and not callable(backward):
        raise ConfigError(f"backward= is a {type(backward).__name__}", hint="give a kernel or a function: backward(*grads, *args)")
    return Kernel(fn, one, listed, settings, backward, save_outputs, dynamic)
