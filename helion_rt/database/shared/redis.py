"""Redis and Valkey: a record is a value, a lease is a value that expires, and who publishes says so on a channel."""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..store import Fault
from .engine import MAX_ENTRY_BYTES, MAX_LEASE_S, Choose, SharedError, is_digest

if TYPE_CHECKING:
    from redis import Redis

log = logging.getLogger("helion_rt.database")

_BATCH = 500  # keys a step of a scan
_PATIENCE_S = 60.0  # a merge that meets ever new writers gives up after this long
_RECONNECT_S = (0.1, 5.0)  # pauses of a listener that cannot reach the server: the first, the longest
_LISTEN_S = 0.5  # how long a listener waits for a message before it looks whether it is to stop
_PING_S = 10  # a connection that was silent for so long is asked whether it lives

# Values are compared as bytes: the server knows nothing of records. GETRANGE: a value of any length is read up to our limit only, and
# what is longer never equals what it is compared with ("" stands for it, as for a value of another type and for none).
_LOOK = """
if redis.call('TYPE', KEYS[1]).ok ~= 'string' then return {redis.call('EXISTS', KEYS[1]), ''} end
if redis.call('STRLEN', KEYS[1]) > tonumber(ARGV[1]) then return {1, ''} end
return {1, redis.call('GET', KEYS[1])}
"""
_SWAP = """
local old = ''
if redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('STRLEN', KEYS[1]) <= tonumber(ARGV[3]) then
  old = redis.call('GET', KEYS[1])
end
if old ~= ARGV[1] then return 0 end
if ARGV[4] == '' then redis.call('SET', KEYS[1], ARGV[2]) else redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[4]) end
redis.call('PUBLISH', ARGV[5], ARGV[6])
return 1
"""
_TAKE = """
if redis.call('TYPE', KEYS[1]).ok == 'string' and redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
if redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2], 'NX') then return 1 end
local left = redis.call('PTTL', KEYS[1])
if left >= 0 and left <= tonumber(ARGV[3]) then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])  -- what never expires, or in years, is no lease of ours
return 1
"""
_RENEW = """
if redis.call('TYPE', KEYS[1]).ok ~= 'string' or redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
"""
_RELEASE = """
if redis.call('TYPE', KEYS[1]).ok ~= 'string' or redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
"""


@dataclass(frozen=True)
class Server:
    """Where the server is and how it is talked to. ``number`` is its database's; ``ca`` a file of certificates to trust with
    ``tls``, None for the system's; ``timeout`` in seconds, of connecting and of each answer."""

    host: str
    port: int
    number: int = 0
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    ca: str | None = None
    timeout: float = 2.0

    def connect(self) -> Redis:
        """A client with a pool of connections, none of them open yet."""
        import redis  # late: importing the client costs 0.2 s, and only the exchange thread needs it
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        tls = {"ssl": True, "ssl_ca_certs": self.ca} if self.tls else {}
        return redis.Redis(
            host=self.host, port=self.port, db=self.number, username=self.user, password=self.password, **tls,
            socket_timeout=self.timeout, socket_connect_timeout=self.timeout, socket_keepalive=True, health_check_interval=_PING_S,
            # Once more, at once, where a pooled connection turns out to be of a server that was restarted. Never after a
            # time-out. All that is sent may be sent twice.
            retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        )  # fmt: skip


class RedisEngine:
    """An ``Engine`` over one server. Names are ``<prefix>:r:<digest>`` for records, ``<prefix>:l:<digest>`` for leases; the channel
    is ``<prefix>:published``. Records live for ``expire`` seconds after the last merge that changed them (None: for ever)."""

    def __init__(self, server: Server, prefix: str, expire: float | None) -> None:
        self._server, self._prefix, self._expire = server, prefix, expire
        self._lock = threading.Lock()
        self._client: Redis | None = None
        self._stops: list[Callable[[], None]] = []

    def read(self, name: str) -> list[bytes]:
        there, data = self._script(_LOOK, self._record(name), MAX_ENTRY_BYTES)
        return [data] if there else []

    def merge(self, name: str, data: bytes, choose: Choose) -> bytes:
        give_up = time.monotonic() + _PATIENCE_S
        expire = "" if self._expire is None else round(self._expire * 1000)
        while time.monotonic() < give_up:
            _, old = self._script(_LOOK, self._record(name), MAX_ENTRY_BYTES)
            new = choose(old, data) if old else data
            if new == old or self._script(_SWAP, self._record(name), old, new, MAX_ENTRY_BYTES, expire, self._channel, name):
                return new
        raise SharedError(f"merging {name} went on for {_PATIENCE_S:g} s", Fault.BUSY)

    def names(self) -> Iterator[str]:
        prefix, cursor = self._record("").encode(), 0
        pattern = b"".join(b"\\" + bytes([c]) if c in b"*?[]^-\\" else bytes([c]) for c in prefix) + b"*"
        seen: set[str] = set()  # a scan may tell a key twice
        while True:
            with self._told() as client:
                found: Any = client.scan(cursor, match=pattern, count=_BATCH)
            cursor, keys = found
            for key in keys:
                name = key[len(prefix) :].decode("ascii", "replace")
                if name not in seen and is_digest(name):
                    seen.add(name)
                    yield name
            if not cursor:
                return

    def remove(self, name: str) -> bool:
        with self._told() as client:
            return bool(client.delete(self._record(name)))

    def take(self, name: str, owner: str, seconds: float) -> bool:
        return bool(self._script(_TAKE, self._lease(name), owner, round(seconds * 1000), round(MAX_LEASE_S * 1000)))

    def renew(self, name: str, owner: str, seconds: float) -> bool:
        return bool(self._script(_RENEW, self._lease(name), owner, round(seconds * 1000)))

    def release(self, name: str, owner: str) -> None:
        self._script(_RELEASE, self._lease(name), owner)

    def subscribe(self, told: Callable[[str], None], missed: Callable[[], None]) -> Callable[[], None]:
        stop = threading.Event()
        thread = threading.Thread(target=self._listen, args=(told, missed, stop), daemon=True, name="helion-rt-shared-listener")
        thread.start()

        def end() -> None:
            stop.set()
            if thread is not threading.current_thread():
                thread.join(2 * _LISTEN_S + self._server.timeout)

        with self._lock:
            self._stops.append(end)
        return end

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            stops, self._stops = self._stops, []
        for stop in stops:
            stop()
        if client is not None:
            with contextlib.suppress(Exception):
                client.close()

    def _listen(self, told: Callable[[str], None], missed: Callable[[], None], stop: threading.Event) -> None:
        """Pass on what the channel says until ``stop``, connecting anew as often as it takes."""
        pause = _RECONNECT_S[0]
        while not stop.is_set():
            try:
                with self._told() as client, client.pubsub(ignore_subscribe_messages=False) as channel:
                    channel.subscribe(self._channel)
                    while not stop.is_set():
                        message = channel.get_message(timeout=_LISTEN_S)
                        if message is None:
                            continue
                        if message["type"] == "subscribe":
                            pause = _RECONNECT_S[0]
                            missed()
                        elif message["type"] == "message" and len(message["data"]) == 64:
                            told(message["data"].decode("ascii", "replace"))
            except Exception as error:  # whatever it is, this thread goes on listening
                log.debug("the listener of %s:%s connects again: %s", self._server.host, self._server.port, error)
            # Spread, so that not all servers of a cluster come back at the same moment.
            stop.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, _RECONNECT_S[1])

    def _record(self, name: str) -> str:
        return f"{self._prefix}:r:{name}"

    def _lease(self, name: str) -> str:
        return f"{self._prefix}:l:{name}"

    @property
    def _channel(self) -> str:
        # Channels are not of one database.
        return f"{self._prefix}:{self._server.number}:published"

    def _script(self, script: str, key: str, *arguments: Any) -> Any:
        with self._told() as client:
            return client.eval(script, 1, key, *arguments)

    @contextlib.contextmanager
    def _told(self) -> Iterator[Redis]:
        """The client; its errors and the system's as SharedError."""
        from redis import RedisError

        with self._lock:
            if self._client is None:
                self._client = self._server.connect()
            client = self._client
        try:
            yield client
        except (RedisError, OSError, UnicodeError) as error:
            raise SharedError(f"{self._server.host}:{self._server.port}: {type(error).__name__}: {error}") from error
