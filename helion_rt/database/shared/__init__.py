"""Tiers that machines share: a folder, an object store, Redis. ``open_shared`` opens one by its URL."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from helion_rt.exc import ConfigError

from ..signing import Trust
from .engine import Engine, SharedError
from .files import FilesEngine
from .folder import FolderFiles
from .tier import SharedStats, SharedTier

__all__ = ["SharedError", "SharedStats", "SharedTier", "open_shared"]

_REDIS = ("redis", "rediss", "valkey", "valkeys")
# Scheme to (fsspec's protocol, the module that implements it, our extra that installs it).
_OBJECT_STORES = {
    "s3": ("s3", "s3fs", "s3"),
    "gs": ("gs", "gcsfs", "gcs"),
    "gcs": ("gs", "gcsfs", "gcs"),
    "az": ("az", "adlfs", None),
    "memory": ("memory", "fsspec", "s3"),  # of one process: for tests
}
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def open_shared(url: str, *, trust: Trust, timeout: float = 2.0) -> SharedTier:
    """The shared tier at ``url``; each answer is waited for ``timeout`` seconds at most. Asks nothing of network or disk yet.

    ``file:///folder`` (it has to exist), ``s3://bucket/prefix?endpoint_url=&region=``, ``gs://bucket/prefix?endpoint_url=``,
    ``redis://user:password@host:port/db/prefix?expire=30d`` (``rediss`` for TLS, ``valkey`` and ``valkeys`` alike).
    Raises ConfigError for a URL that means nothing, or where a library is missing.
    """
    parts = _split(url)
    if parts.scheme == "file":
        return SharedTier(*_folder(parts, trust), trust)
    if parts.scheme in _REDIS:
        return SharedTier(*_redis(parts, timeout), trust)
    if parts.scheme in _OBJECT_STORES:
        return SharedTier(*_objects(parts, timeout), trust)
    known = ", ".join(["file", *_OBJECT_STORES, *_REDIS])
    raise ConfigError(f"a shared tier's URL begins with one of {known}, not with {parts.scheme or 'nothing'!r}",
                      hint="for example HELION_RT_SHARED=file:///mnt/team/helion_rt")  # fmt: skip


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  it is parsed when it is asked for
    except ValueError:  # its text may hold a password: it is not shown
        raise ConfigError("the URL of a shared tier cannot be read", hint="special characters in a password are written %xx") from None
    if parts.fragment:
        raise ConfigError(f"the URL of a shared tier has no #fragment: {_shown(parts)}", hint="write # in a password as %23")
    return parts


def _shown(parts: SplitResult) -> str:
    """The URL for people: without user, password and parameters."""
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _parameters(parts: SplitResult, known: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in known or name in found or not value:
            allowed = f"its parameters are {', '.join(known)}" if known else "it has no parameters"
            raise ConfigError(f"{_shown(parts)} is given the parameter {name!r} wrongly", hint=f"{allowed}, each once")
        found[name] = value
    return found


def _need(module: str, parts: SplitResult, extra: str | None) -> None:
    if importlib.util.find_spec(module) is None:
        hint = f"pip install 'helion_rt[{extra}]'" if extra else f"pip install {module}"
        raise ConfigError(f"{_shown(parts)} needs the package {module}, which is not installed", hint=hint)


def _folder(parts: SplitResult, trust: Trust) -> tuple[str, Engine]:
    _parameters(parts, ())
    path = unquote(parts.path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/") or "\0" in path:
        raise ConfigError(f"a shared folder is given as file:///absolute/path, not as {_shown(parts)}")
    return _shown(parts), FilesEngine(FolderFiles(Path(path), anybody=trust.secret is not None and trust.required))


def _redis(parts: SplitResult, timeout: float) -> tuple[str, Engine]:
    given = _parameters(parts, ("prefix", "expire", "ca"))
    _need("redis", parts, "redis")
    first, _, rest = unquote(parts.path).strip("/").partition("/")
    number, prefix = (int(first), rest) if first.isascii() and first.isdigit() else (0, "/".join(filter(None, (first, rest))))
    if prefix and "prefix" in given:
        raise ConfigError(f"{_shown(parts)} is given a prefix twice: in its path and as ?prefix=")
    from .redis import RedisEngine, Server  # late: it imports the client

    tls = parts.scheme in ("rediss", "valkeys")
    if "ca" in given and not tls:
        raise ConfigError(f"{_shown(parts)} has no TLS, and no use for ?ca=", hint="rediss:// has")
    server = Server(
        host=parts.hostname or "localhost",
        port=parts.port or 6379,
        number=number,
        user=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        tls=tls,
        ca=given.get("ca"),
        timeout=timeout,
    )
    return _shown(parts), RedisEngine(server, given.get("prefix", prefix) or "helion_rt", _expiry(parts, given.get("expire")))


def _expiry(parts: SplitResult, text: str | None) -> float | None:
    """``30d`` and the like, in seconds."""
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d{0,8})([smhd])", text, re.ASCII)
    if match is None:
        raise ConfigError(f"{_shown(parts)} has ?expire={text[:20]!r}", hint="a number and s, m, h or d: expire=30d")
    return float(int(match[1]) * _UNITS[match[2]])


def _objects(parts: SplitResult, timeout: float) -> tuple[str, Engine]:
    given = _parameters(parts, ("endpoint_url", "region"))
    protocol, module, extra = _OBJECT_STORES[parts.scheme]
    if not parts.netloc or "@" in parts.netloc or ":" in parts.netloc:
        raise ConfigError(f"an object store is given as {parts.scheme}://bucket/prefix, not as {_shown(parts)}",
                          hint="credentials come from the provider's own variables and files, the server from ?endpoint_url=")  # fmt: skip
    if parts.scheme != "s3" and "region" in given:
        raise ConfigError(f"{_shown(parts)} has no use for ?region=")
    _need("fsspec", parts, extra)
    _need(module, parts, extra)
    from .objects import ObjectFiles  # late: not everybody has one

    root = f"{parts.netloc}/{unquote(parts.path).strip('/')}".rstrip("/")
    return _shown(parts), FilesEngine(ObjectFiles(protocol, root, given, timeout))
