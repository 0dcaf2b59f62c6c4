"""Settings: what the user decides and no tuner may change. Every ``HELION_RT_*`` variable is read here and nowhere else.

=======================  =====================================================================================
``HELION_RT_TUNE``       ``off`` (nothing is tuned), ``background`` (default: calls never wait), ``sync`` (the first
                         call of a signature waits for its winner)
``HELION_RT_TUNE_SECONDS``  budget for tuning one signature, in seconds, > 0 (default 60)
``HELION_RT_CACHE_DIR``  where the tuning database lives (default: the platform's cache folder for ``helion_rt``)
``HELION_RT_LOG``        level of the ``helion_rt`` logger: debug, info, warning (default), error; what it says goes to
                         standard error unless the process has set up logging itself
``HELION_RT_REFERENCE``  ``1``: kernels run their own source eagerly in torch, tile by tile, for debugging with print and
                         pdb (read when a kernel meets arguments of a new kind); ``0`` (default): they are compiled
=======================  =====================================================================================

An empty variable counts as unset.
"""

from __future__ import annotations

import difflib
import enum
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import platformdirs

from .exc import ConfigError

TUNE = "HELION_RT_TUNE"
TUNE_SECONDS = "HELION_RT_TUNE_SECONDS"
CACHE_DIR = "HELION_RT_CACHE_DIR"
LOG = "HELION_RT_LOG"
REFERENCE = "HELION_RT_REFERENCE"


class TuneMode(enum.Enum):
    """When signatures are tuned."""

    OFF = "off"
    BACKGROUND = "background"
    SYNC = "sync"


class Switch(enum.Enum):
    """A variable that is on or off."""

    ON = "1"
    OFF = "0"


class LogLevel(enum.Enum):
    """Level of the ``helion_rt`` logger; ``.number`` is the one of ``logging``."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def number(self) -> int:
        return {"debug": 10, "info": 20, "warning": 30, "error": 40}[self.value]


class DotPrecision(enum.Enum):
    """Helion's ``dot_precision``: how float32 operands of a dot may be rounded."""

    TF32 = "tf32"
    TF32X3 = "tf32x3"
    IEEE = "ieee"


# Settings of Helion that have no meaning here: a kernel that gives them runs, and they change nothing.
IGNORED_HELION_SETTINGS = frozenset(
    """allow_warp_specialize autotune_accuracy_check autotune_adaptive_timeout
    autotune_baseline_accuracy_check_fn autotune_baseline_atol autotune_baseline_fn autotune_baseline_rtol
    autotune_benchmark_fn autotune_benchmark_subprocess autotune_benchmark_timeout
    autotune_best_available_max_cache_scan autotune_best_available_max_configs autotune_best_of_k
    autotune_budget_seconds autotune_cache autotune_compile_timeout autotune_config_filter
    autotune_config_overrides autotune_effort autotune_force_persistent autotune_ignore_errors
    autotune_initial_population_strategy autotune_log autotune_log_details autotune_log_level
    autotune_log_search_space autotune_log_search_space_path autotune_log_search_space_verbose
    autotune_max_generations autotune_precompile autotune_precompile_jobs autotune_progress_bar
    autotune_random_seed autotune_rebenchmark_threshold autotune_search_acf autotune_seed_configs
    autotune_suspicious_rebenchmark_ratio autotune_with_torch_compile_fusion autotuner_fn backend
    debug_dtype_asserts disable_autotuner_heuristics fast_math force_autotune key output_origin_lines
    pallas_collective_id pallas_interpret pallas_topk_recall_target persistent_reserved_sms print_output_code
    print_repro ref_mode torch_compile_fusion triton_do_not_specialize""".split()
)

_PER_PROCESS = {"cache_dir": CACHE_DIR, "log_level": LOG, "reference": REFERENCE}


def default_cache_dir() -> Path:
    """The platform's cache folder for this library; not created."""
    return Path(platformdirs.user_cache_dir("helion_rt", appauthor=False))


@dataclass(frozen=True)
class Settings:
    """Settings of a process, or of one kernel (``for_kernel``). Immutable and hashable.

    ``cache_dir``, ``log_level`` and ``reference`` belong to the process. ``static_shapes``, ``index_dtype`` (a torch dtype or None),
    ``dot_precision`` and ``ignore_warnings`` have Helion's meaning. ``ignored`` names Helion settings that were given
    and mean nothing here. ``tune_seconds`` is the budget for tuning one signature.
    """

    tune: TuneMode = TuneMode.BACKGROUND
    tune_seconds: float = 60.0
    cache_dir: Path = field(default_factory=default_cache_dir)
    log_level: LogLevel = LogLevel.WARNING
    reference: bool = False
    static_shapes: bool = True
    index_dtype: Any = None
    dot_precision: DotPrecision | None = None
    ignore_warnings: tuple[type[Warning], ...] = ()
    ignored: tuple[str, ...] = ()

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Settings:
        """Settings of this process as its environment gives them. Raises ``ConfigError`` naming a bad variable."""
        env = os.environ if environ is None else environ
        chosen: dict[str, Any] = {}
        if text := env.get(TUNE, "").strip():
            chosen["tune"] = _choice(TUNE, text, TuneMode)
        if text := env.get(TUNE_SECONDS, "").strip():
            chosen["tune_seconds"] = _seconds(TUNE_SECONDS, text)
        if text := env.get(CACHE_DIR, "").strip():
            chosen["cache_dir"] = _directory(CACHE_DIR, text)
        if text := env.get(LOG, "").strip():
            chosen["log_level"] = _choice(LOG, text, LogLevel)
        if text := env.get(REFERENCE, "").strip():
            chosen["reference"] = _choice(REFERENCE, text, Switch) is Switch.ON
        return cls(**chosen)

    def for_kernel(
        self,
        kwargs: Mapping[str, Any],
        *,
        kernel: str | None = None,
        file: str | None = None,
        line: int | None = None,
    ) -> Settings:
        """These settings with the keyword arguments of ``@helion_rt.kernel(...)`` over them.

        Raises ``ConfigError``, naming the kernel and its place, for an unknown name (with the closest known one) and
        for a value that is not allowed.
        """
        try:
            chosen = {name: _kernel_setting(name, value) for name, value in kwargs.items() if name not in IGNORED_HELION_SETTINGS}
        except ConfigError as error:
            raise ConfigError(error.message, kernel=kernel, file=file, line=line, hint=error.hint) from None
        ignored = sorted({*self.ignored, *(IGNORED_HELION_SETTINGS & kwargs.keys())})
        return replace(self, **chosen, ignored=tuple(ignored))

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for status reports and JSON."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _kernel_setting(name: str, value: Any) -> Any:
    if name == "tune":
        return _choice(name, value, TuneMode)
    if name == "tune_seconds":
        return _seconds(name, value)
    if name == "dot_precision":
        return None if value is None else _choice(name, value, DotPrecision)
    if name == "static_shapes":
        return _instance(name, value, bool)
    if name == "index_dtype":
        return value
    if name == "ignore_warnings":
        return _warnings(value)
    if name in _PER_PROCESS:
        raise ConfigError(f"{name} belongs to the process, not to one kernel", hint=f"set the environment variable {_PER_PROCESS[name]}")
    known = sorted(IGNORED_HELION_SETTINGS | _KERNEL_SETTINGS)
    close = difflib.get_close_matches(name, known, n=1)
    raise ConfigError(
        f"unknown setting '{name}' of a kernel",
        hint=f"did you mean '{close[0]}'?" if close else f"settings: {', '.join(sorted(_KERNEL_SETTINGS))}",
    )


_KERNEL_SETTINGS = frozenset({"tune", "tune_seconds", "dot_precision", "static_shapes", "index_dtype", "ignore_warnings"})


def _choice(name: str, value: Any, kind: type[enum.Enum]) -> Any:
    try:
        return kind(value.strip().lower() if isinstance(value, str) else value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in kind)
        raise ConfigError(f"{name}={value!r:.80} is not allowed", hint=f"allowed values of {name}: {allowed}") from None


def _seconds(name: str, value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = math.nan
    if isinstance(value, bool) or not (0 < seconds < math.inf):
        raise ConfigError(f"{name}={value!r:.80} is not a number of seconds above 0", hint=f"for example {name}=60")
    return seconds


def _directory(name: str, value: str) -> Path:
    try:
        return Path(value).expanduser()
    except RuntimeError as error:  # a ~user that does not exist
        raise ConfigError(f"{name}={value!r:.200} cannot be resolved: {error}", hint="give a whole path, from / on") from None


def _instance(name: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ConfigError(f"{name} must be a {kind.__name__}, got {value!r:.80}")
    return value


def _warnings(value: Any) -> tuple[type[Warning], ...]:
    items = tuple(value) if isinstance(value, (list, tuple)) else (value,)
    if not all(isinstance(item, type) and issubclass(item, Warning) for item in items):
        raise ConfigError(
            f"ignore_warnings must be a list of warning classes, got {value!r:.80}",
            hint="for example ignore_warnings=[helion_rt.exc.TensorOperationInWrapper]",
        )
    return items


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple):
        return [item.__name__ if isinstance(item, type) else item for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
