"""Settings: what the user decides and no tuner may change. Every ``HELION_RT_*`` variable is read here and nowhere else.

=======================  =====================================================================================
``HELION_RT_TUNE``       ``off`` (nothing is tuned), ``background`` (default: calls never wait), ``sync`` (the first
                         call of a signature waits for its winner)
``HELION_RT_TUNE_SECONDS``  budget for tuning one signature, in seconds, > 0 (default 60)
``HELION_RT_TUNE_AFTER``  calls after which a signature is worth tuning, >= 1 (default 2; a call that is traced into a JAX
                         program counts for many, and whoever waits for tuning waits for every signature)
``HELION_RT_STRICT``     ``1``: only configs whose results are bitwise those of the default, on all trial inputs, may take its
                         place; ``0`` (default): results agree within what rounding allows
``HELION_RT_MEASURE_ON_DEVICE``  ``1``: on a TPU signatures are tuned too; candidates are compiled in a worker process and measured in
                         this one while it is idle. ``0`` (default): stored winners and the safe default serve
``HELION_RT_WORKER_GB``  memory, in GiB, above which the tuner's worker process is ended (default: half of the machine's)
``HELION_RT_RUNTIME_DIR``  a folder on this machine's own disk for the lock by which one process at a time tunes (default:
                         in ``XDG_RUNTIME_DIR``, else in the temporary folder)
``HELION_RT_CACHE_DIR``  where the tuning database lives (default: the platform's cache folder for ``helion_rt``)
``HELION_RT_LOG``        level of the ``helion_rt`` logger: debug, info, warning (default), error; what it says goes to
                         standard error unless the process has set up logging itself
``HELION_RT_REFERENCE``  ``1``: kernels run their own source eagerly in torch, tile by tile, for debugging with print and
                         pdb (read when a kernel meets arguments of a new kind); ``0`` (default): they are compiled
``HELION_RT_SHARED``     where the cluster shares what it has tuned: one URL or several, with spaces or commas between them:
                         ``file:///mnt/tuning``, ``s3://bucket/prefix``, ``gs://bucket/prefix``, ``redis://host:6379/0``,
                         ``rediss://...`` (default: nowhere)
``HELION_RT_TIERS``      what is done with a tier, e.g. ``shared=read-only,shipped=off``. Tiers: ``local``, ``shared``, ``shipped``;
                         modes: ``write-through`` (default: read and written), ``read-only``, ``off``. ``shipped`` is never written
``HELION_RT_SIGNING_KEY``  a secret of at least 16 characters: what this process stores is signed with it (HMAC-SHA256), and what is
                         signed with another is a miss
``HELION_RT_SIGNING_KEY_FILE``  the same from a file; refused if anybody but its owner and group can read it, or anybody but its owner
                         can write it
``HELION_RT_SIGNED_ONLY``  ``1``: what is not signed is a miss, in every tier but the shipped one; ``0`` (default): it is taken
``HELION_RT_LEASE_SECONDS``  after this long another process of the cluster takes over the key of a tuner that died (default 60; 1 to 86400)
``HELION_RT_RECORD_KEYS``  a file to which the signatures that live traffic asks for are appended, one a line, for
                         ``helion-rt prewarm`` (default: none)
=======================  =====================================================================================

An empty variable counts as unset.
"""

from __future__ import annotations

import difflib
import enum
import math
import os
import re
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import platformdirs

from .exc import ConfigError

TUNE = "HELION_RT_TUNE"
TUNE_SECONDS = "HELION_RT_TUNE_SECONDS"
TUNE_AFTER = "HELION_RT_TUNE_AFTER"
STRICT = "HELION_RT_STRICT"
MEASURE_ON_DEVICE = "HELION_RT_MEASURE_ON_DEVICE"
WORKER_GB = "HELION_RT_WORKER_GB"
RUNTIME_DIR = "HELION_RT_RUNTIME_DIR"
CACHE_DIR = "HELION_RT_CACHE_DIR"
LOG = "HELION_RT_LOG"
REFERENCE = "HELION_RT_REFERENCE"
SHARED = "HELION_RT_SHARED"
TIERS = "HELION_RT_TIERS"
SIGNING_KEY = "HELION_RT_SIGNING_KEY"
SIGNING_KEY_FILE = "HELION_RT_SIGNING_KEY_FILE"
SIGNED_ONLY = "HELION_RT_SIGNED_ONLY"
LEASE_SECONDS = "HELION_RT_LEASE_SECONDS"
RECORD_KEYS = "HELION_RT_RECORD_KEYS"
VARIABLES = (
    TUNE, TUNE_SECONDS, TUNE_AFTER, STRICT, MEASURE_ON_DEVICE, WORKER_GB, RUNTIME_DIR, CACHE_DIR, LOG, REFERENCE, SHARED, TIERS,
    SIGNING_KEY, SIGNING_KEY_FILE, SIGNED_ONLY, LEASE_SECONDS, RECORD_KEYS,
)  # fmt: skip

MIN_SIGNING_KEY = 16  # bytes
MAX_SIGNING_KEY = 4096


class TuneMode(enum.Enum):
    """When signatures are tuned."""

    OFF = "off"
    BACKGROUND = "background"
    SYNC = "sync"


class Switch(enum.Enum):
    """A variable that is on or off."""

    ON = "1"
    OFF = "0"


class TierMode(enum.Enum):
    """What is done with a tier of the tuning database."""

    WRITE_THROUGH = "write-through"  # it is read, and what is tuned is written to it
    READ_ONLY = "read-only"
    OFF = "off"

    @property
    def reads(self) -> bool:
        return self is not TierMode.OFF

    @property
    def writes(self) -> bool:
        return self is TierMode.WRITE_THROUGH


@dataclass(frozen=True)
class TierModes:
    """The mode of each tier. ``shipped`` is never written."""

    local: TierMode = TierMode.WRITE_THROUGH
    shared: TierMode = TierMode.WRITE_THROUGH
    shipped: TierMode = TierMode.READ_ONLY


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

_PER_PROCESS = {"cache_dir": CACHE_DIR, "log_level": LOG, "reference": REFERENCE, "worker_gb": WORKER_GB, "runtime_dir": RUNTIME_DIR,
                "measure_on_device": MEASURE_ON_DEVICE, "shared": SHARED, "tiers": TIERS, "signing_key": SIGNING_KEY,
                "signed_only": SIGNED_ONLY, "lease_seconds": LEASE_SECONDS, "record_keys": RECORD_KEYS}  # fmt: skip


def default_cache_dir() -> Path:
    """The platform's cache folder for this library; not created."""
    return Path(platformdirs.user_cache_dir("helion_rt", appauthor=False))


def default_runtime_dir() -> Path:
    """A folder for what lives no longer than this machine is up: in ``XDG_RUNTIME_DIR``, else in the temporary folder. Not created."""
    session = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(session) and os.access(session, os.W_OK):
        return Path(session) / "helion_rt"
    return Path(tempfile.gettempdir()) / f"helion_rt-{os.getuid() if hasattr(os, 'getuid') else 'user'}"


@dataclass(frozen=True)
class Settings:
    """Settings of a process, or of one kernel (``for_kernel``). Immutable and hashable.

    ``cache_dir``, ``log_level``, ``reference``, ``measure_on_device``, ``worker_gb`` and ``runtime_dir`` belong to the process.
    ``static_shapes``, ``index_dtype`` (a torch dtype or None), ``dot_precision`` and ``ignore_warnings`` have Helion's meaning.
    ``ignored`` names Helion settings that were given and mean nothing here. ``tune_seconds`` is the budget for tuning one
    signature, ``tune_after`` the calls that make it worth that; ``strict`` allows swaps only between configs whose results are
    bitwise equal on the trial inputs. ``worker_gb``: None is half of the machine's memory.

    ``shared`` (URLs), ``tiers``, ``signing_key``, ``signed_only``, ``lease_seconds`` and ``record_keys`` belong to the process as well.
    Neither the key nor a password in a URL is in ``repr()`` or ``to_dict()``.
    """

    tune: TuneMode = TuneMode.BACKGROUND
    tune_seconds: float = 60.0
    tune_after: int = 2
    strict: bool = False
    cache_dir: Path = field(default_factory=default_cache_dir)
    log_level: LogLevel = LogLevel.WARNING
    reference: bool = False
    measure_on_device: bool = False
    worker_gb: float | None = None
    runtime_dir: Path = field(default_factory=default_runtime_dir)
    shared: tuple[str, ...] = field(default=(), repr=False)
    tiers: TierModes = TierModes()
    signing_key: bytes | None = field(default=None, repr=False)
    signed_only: bool = False
    lease_seconds: float = 60.0
    record_keys: Path | None = None
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
        if text := env.get(TUNE_AFTER, "").strip():
            chosen["tune_after"] = _calls(TUNE_AFTER, text)
        if text := env.get(STRICT, "").strip():
            chosen["strict"] = _choice(STRICT, text, Switch) is Switch.ON
        if text := env.get(MEASURE_ON_DEVICE, "").strip():
            chosen["measure_on_device"] = _choice(MEASURE_ON_DEVICE, text, Switch) is Switch.ON
        if text := env.get(WORKER_GB, "").strip():
            chosen["worker_gb"] = _above_zero(WORKER_GB, text, "GiB", "8")
        if text := env.get(RUNTIME_DIR, "").strip():
            chosen["runtime_dir"] = _directory(RUNTIME_DIR, text)
        if text := env.get(CACHE_DIR, "").strip():
            chosen["cache_dir"] = _directory(CACHE_DIR, text)
        if text := env.get(LOG, "").strip():
            chosen["log_level"] = _choice(LOG, text, LogLevel)
        if text := env.get(REFERENCE, "").strip():
            chosen["reference"] = _choice(REFERENCE, text, Switch) is Switch.ON
        return cls(**chosen, **_database_settings(env))

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
        plain = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        return {**plain, "shared": list(map(without_password, self.shared)), "signing_key": "set" if self.signing_key else None}


def _kernel_setting(name: str, value: Any) -> Any:
    if name == "tune":
        return _choice(name, value, TuneMode)
    if name == "tune_seconds":
        return _seconds(name, value)
    if name == "tune_after":
        return _calls(name, value)
    if name == "dot_precision":
        return None if value is None else _choice(name, value, DotPrecision)
    if name in ("static_shapes", "strict"):
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


_KERNEL_SETTINGS = frozenset(
    {"tune", "tune_seconds", "tune_after", "strict", "dot_precision", "static_shapes", "index_dtype", "ignore_warnings"}
)


def _choice(name: str, value: Any, kind: type[enum.Enum]) -> Any:
    try:
        return kind(value.strip().lower() if isinstance(value, str) else value)
    except ValueError:
        allowed = ", ".join(str(member.value) for member in kind)
        raise ConfigError(f"{name}={value!r:.80} is not allowed", hint=f"allowed values of {name}: {allowed}") from None


def _seconds(name: str, value: Any) -> float:
    return _above_zero(name, value, "seconds", "60")


def _above_zero(name: str, value: Any, unit: str, example: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if isinstance(value, bool) or not (0 < number < math.inf):
        raise ConfigError(f"{name}={value!r:.80} is not a number of {unit} above 0", hint=f"for example {name}={example}")
    return number


def _calls(name: str, value: Any) -> int:
    try:
        calls = int(value)
    except (TypeError, ValueError):
        calls = 0
    if isinstance(value, (bool, float)) or calls < 1:
        raise ConfigError(f"{name}={value!r:.80} is not a number of calls, 1 or more", hint=f"for example {name}=2")
    return calls


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


_URL = re.compile(r"[a-z][a-z0-9+.-]*://.", re.ASCII)


def urls(name: str, text: str) -> tuple[str, ...]:
    """The URLs of ``text``, with spaces or commas between them, each once. Raises ``ConfigError`` for what is no URL."""
    found = tuple(dict.fromkeys(part for part in re.split(r"[\s,]+", text) if part))
    for url in found:
        if not _URL.match(url):
            raise ConfigError(
                f"{name}: {without_password(url)!r:.200} is no URL",
                hint=f"for a folder {name}=file:///mnt/tuning; others: s3://bucket/prefix, gs://bucket/prefix, redis://host:6379/0",
            )
    return found


def without_password(url: str) -> str:
    """``url`` as it may be shown: hidden is whatever stands between ``://`` (or the beginning, where it is no URL) and the last ``@``, and
    secrets among its parameters."""
    named = re.sub(r"(?<=://).*@|^(?!.*://)\S*@", "***@", url)
    return re.sub(r"([?&][^=&]*(?:pass|secret|token|key)[^=&]*=)[^&]*", r"\1***", named, flags=re.IGNORECASE)


def _database_settings(env: Mapping[str, str]) -> dict[str, Any]:
    """What the environment says of the tuning database's tiers."""
    chosen: dict[str, Any] = {}
    if text := env.get(SHARED, "").strip():
        chosen["shared"] = urls(SHARED, text)
    if text := env.get(TIERS, "").strip():
        chosen["tiers"] = _tier_modes(text)
    if text := env.get(LEASE_SECONDS, "").strip():
        chosen["lease_seconds"] = _above_zero(LEASE_SECONDS, text, "seconds", "60")
        if not 1 <= chosen["lease_seconds"] <= 86400:  # no engine believes more
            raise ConfigError(f"{LEASE_SECONDS}={text!r:.80} is not between 1 and 86400 seconds", hint=f"for example {LEASE_SECONDS}=60")
    if text := env.get(RECORD_KEYS, "").strip():
        chosen["record_keys"] = _directory(RECORD_KEYS, text)
    key, file = env.get(SIGNING_KEY, "").strip(), env.get(SIGNING_KEY_FILE, "").strip()
    if key and file:
        raise ConfigError(f"{SIGNING_KEY} and {SIGNING_KEY_FILE} are both set", hint="unset one of them")
    if key or file:
        chosen["signing_key"] = _signing_key(SIGNING_KEY, key.encode()) if key else _key_in_file(_directory(SIGNING_KEY_FILE, file))
    if text := env.get(SIGNED_ONLY, "").strip():
        chosen["signed_only"] = _choice(SIGNED_ONLY, text, Switch) is Switch.ON
        if chosen["signed_only"] and "signing_key" not in chosen:
            raise ConfigError(f"{SIGNED_ONLY}=1 without a key: nothing could be read", hint=f"set {SIGNING_KEY_FILE} or {SIGNING_KEY}")
    return chosen


def _tier_modes(text: str) -> TierModes:
    chosen: dict[str, TierMode] = {}
    names = [f.name for f in fields(TierModes)]
    for part in filter(None, re.split(r"[\s,]+", text)):
        tier, equals, mode = part.partition("=")
        if tier not in names or not equals:
            hint = f"tiers: {', '.join(names)}; for example {TIERS}=shared=read-only"
            raise ConfigError(f"{TIERS}: {part!r:.80} names no tier", hint=hint)
        chosen[tier] = _choice(f"{TIERS}: {tier}", mode, TierMode)
    if chosen.get("shipped") is TierMode.WRITE_THROUGH:
        hint = "shipped records are part of the package: read-only or off"
        raise ConfigError(f"{TIERS}: shipped=write-through is not allowed", hint=hint)
    return TierModes(**chosen)


def _signing_key(name: str, secret: bytes) -> bytes:
    if not MIN_SIGNING_KEY <= len(secret) <= MAX_SIGNING_KEY:
        raise ConfigError(
            f"{name} holds {len(secret)} bytes; a signing key has {MIN_SIGNING_KEY} to {MAX_SIGNING_KEY}",
            hint="for example 32 random bytes as hex: openssl rand -hex 32",
        )
    return secret


def _key_in_file(path: Path) -> bytes:
    """The signing key in a file, without white space around it. Raises ``ConfigError`` where others may read or change the file."""
    try:
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ConfigError(f"{SIGNING_KEY_FILE}={path} is no file")
            if found.st_mode & (stat.S_IRWXO | stat.S_IWGRP):
                hint = f"chmod 600 {path}, and make a new key if somebody may have read it"
                raise ConfigError(f"{SIGNING_KEY_FILE}={path} can be read or changed by others ({stat.filemode(found.st_mode)})", hint=hint)
            secret = file.read(MAX_SIGNING_KEY + 64).strip()
    except OSError as error:
        raise ConfigError(f"{SIGNING_KEY_FILE}={path} cannot be read: {error.strerror or error}") from None
    return _signing_key(SIGNING_KEY_FILE, secret)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, TierModes):
        return {f.name: getattr(value, f.name).value for f in fields(value)}
    if isinstance(value, tuple):
        return [item.__name__ if isinstance(item, type) else item for item in value]
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
