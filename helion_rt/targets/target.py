"""``Target``: a TPU generation, or ``cpu``; by name, or from the device that JAX has."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Protocol

from ..exc import TargetError
from . import host

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class _Generation:
    """Facts that JAX does not tell of a generation.

    ``topology`` is libtpu's name of a small slice; ``chip`` the name of JAX's ``ChipVersion``; ``cores`` the cores that
    one device of that topology joins (v5p runs as a megacore); ``scoped_vmem`` the VMEM, in bytes, that the compiler
    gives a kernel that asks for no ``vmem_limit_bytes`` (read from libtpu 0.0.50.1's refusals; a test reads it again);
    ``copies_ahead``: see ``Target`` (seen in what libtpu 0.0.50.1 makes of a row reduction; a test looks again).
    """

    topology: str
    chip: str
    cores: int
    scoped_vmem: int
    device_kinds: tuple[str, ...]
    aliases: tuple[str, ...]
    copies_ahead: bool = False


_GENERATIONS = {
    "v4": _Generation("v4:2x2x1", "v4", 1, 16 * _MIB, ("TPU v4",), ()),
    "v5e": _Generation("v5e:2x2", "v5e", 1, 16 * _MIB, ("TPU v5 lite", "TPU v5e"), ("v5litepod", "v5lite")),
    "v5p": _Generation("v5p:2x2x1", "v5p", 2, 16 * _MIB, ("TPU v5", "TPU v5p"), ()),
    "v6e": _Generation("v6e:2x2", "v6e", 1, 32 * _MIB, ("TPU v6 lite", "TPU v6e"), ("trillium",)),
    "tpu7x": _Generation("tpu7x:2x2x1", "7x", 1, 32 * _MIB, ("TPU7x", "TPU v7x"), ("v7x", "7x", "ironwood"), True),
}

TPU_NAMES = tuple(_GENERATIONS)
NAMES = ("cpu", *TPU_NAMES)
_ALIASES = {alias: name for name, generation in _GENERATIONS.items() for alias in generation.aliases}
_KINDS = {kind: name for name, generation in _GENERATIONS.items() for kind in generation.device_kinds}


@dataclass(frozen=True, slots=True)
class Target:
    """What code is made for. ``name`` is one of ``NAMES``; ``get`` takes other spellings too. Raises ``TargetError``."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise _unknown(self.name)

    def __str__(self) -> str:
        return self.name

    @property
    def is_tpu(self) -> bool:
        return self.name != "cpu"

    @property
    def topology(self) -> str | None:
        """libtpu's name of a small slice of this generation; None on ``cpu``."""
        return _GENERATIONS[self.name].topology if self.is_tpu else None

    @property
    def info(self) -> Any:
        """JAX's ``TpuInfo`` of one core (VMEM, bandwidth, MXUs, peak rates); None on ``cpu``. Raises ``TargetError``."""
        return _tpu_info(self.name) if self.is_tpu else None

    @property
    def vmem_bytes(self) -> int | None:
        """VMEM that a kernel may use unless it asks for more, in bytes; None on ``cpu``: no limit."""
        return _GENERATIONS[self.name].scoped_vmem if self.is_tpu else None

    @property
    def vmem_capacity_bytes(self) -> int | None:
        """VMEM that a core has: the most that ``vmem_limit_bytes`` can ask for, in bytes; None on ``cpu``."""
        return self.info.vmem_capacity_bytes if self.is_tpu else None

    @property
    def copies_ahead(self) -> bool:
        """Whether the compiler copies operands into VMEM before a kernel begins, where that leaves it room: nothing overlaps the copies."""
        return self.is_tpu and _GENERATIONS[self.name].copies_ahead

    def key(self) -> str:
        """The target's part of a database key: a generation's name, or ``cpu/<instruction set>/<usable cores>``."""
        return self.name if self.is_tpu else f"cpu/{host.this_isa()}/{host.usable_cores()}"


class Device(Protocol):
    """What is asked of a JAX device."""

    @property
    def platform(self) -> str: ...

    @property
    def device_kind(self) -> str: ...


def get(name: str | Target) -> Target:
    """The target called ``name``; aliases and any letter case are understood. Raises ``TargetError`` listing the names."""
    if isinstance(name, Target):
        return name
    if not isinstance(name, str):
        raise _unknown(name)
    plain = name.strip().lower()
    plain = _ALIASES.get(plain, plain)
    if plain not in NAMES:
        raise _unknown(name)
    return Target(plain)


def from_device(device: Device) -> Target:
    """The target that a JAX device is. Raises ``TargetError`` for a TPU of no known generation and for other platforms."""
    if device.platform == "cpu":
        return Target("cpu")
    if device.platform == "tpu":
        if device.device_kind not in _KINDS:
            raise TargetError(
                f"JAX's device is a '{device.device_kind}', a TPU generation that helion_rt does not know",
                hint=f"known: {', '.join(_KINDS)}",
            )
        return Target(_KINDS[device.device_kind])
    raise TargetError(
        f"JAX's default device is on platform '{device.platform}' ({device.device_kind}): helion_rt has no GPU target, only cpu and TPUs",
        hint="set JAX_PLATFORMS=cpu to run on the CPU; on CUDA, run the kernel with Helion itself",
    )


def detect() -> Target:
    """The target of JAX's default backend; looked up once a backend. Starts that backend. Raises ``TargetError``."""
    import jax

    return _of_backend(jax.default_backend())


@functools.cache
def _of_backend(backend: str) -> Target:
    import jax

    return from_device(jax.local_devices(backend=backend)[0])


@functools.cache
def _tpu_info(name: str) -> Any:
    import jax

    generation = _GENERATIONS[name]
    try:
        from jax._src.pallas.mosaic.tpu_info import ChipVersion, get_tpu_info_for_chip

        return get_tpu_info_for_chip(ChipVersion(generation.chip), generation.cores)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise TargetError(
            f"JAX {jax.__version__} does not describe the chip '{name}' where helion_rt looks for it",
            hint="install the jax version of helion_rt's constraints.txt",
        ) from error


def _unknown(name: object) -> TargetError:
    return TargetError(f"there is no target {name!r:.80}", hint=f"targets: {', '.join(NAMES)} (also: {', '.join(_ALIASES)})")
