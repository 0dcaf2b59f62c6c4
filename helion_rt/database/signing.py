"""Signatures: who may say what serves. An entry may be wrapped in one more layer that only holders of a secret can make.

Layout: ``HLRS``, a byte for the version, HMAC-SHA256 of a prefix of that version and the entry (32 bytes), the entry. The key of the
record, or the alias of the program, is inside the entry, so a signed entry means nothing under another name. A signature does not say
when it was made: whoever can write to a tier can put an older signed entry back, which merging then finds to be the worse one.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .codec import BadRecord, NewerRecord

if TYPE_CHECKING:
    from helion_rt.settings import Settings

_MAGIC = b"HLRS"
_VERSION = 1
_DOMAIN = b"helion_rt.database.signature.v1\0"
_DIGEST = 32
_HEADER = len(_MAGIC) + 1

OVERHEAD = _HEADER + _DIGEST
"""Bytes that a signature adds to an entry."""


class Untrusted(BadRecord):
    """An entry whose signature is missing or wrong. Others may trust it: it stays where it is until a trusted one takes its place."""


@dataclass(frozen=True)
class Trust:
    """Which entries are taken, and how ours are sealed. ``secret``: the key of HMAC-SHA256; None: nothing is signed, and signatures of
    others are not checked. ``required``: what is not signed is refused. Without it unsigned entries are taken, and vouched for by
    whoever stores them anew: where signatures are to mean something, every process requires them.

    Raises ValueError for an empty secret, or where signatures are required and there is none to check them with."""

    secret: bytes | None = field(default=None, repr=False)
    required: bool = False

    def __post_init__(self) -> None:
        if self.secret is not None and (not isinstance(self.secret, bytes) or not self.secret):
            raise ValueError("the secret that entries are signed with is bytes, at least one")
        if self.required and self.secret is None:
            raise ValueError("signatures are required, but there is no secret to check them with")

    @classmethod
    def from_settings(cls, settings: Settings) -> Trust:
        """What the environment says (``HELION_RT_SIGNING_KEY``, ``HELION_RT_SIGNED_ONLY``)."""
        return cls(settings.signing_key, settings.signed_only)

    def seal(self, data: bytes) -> bytes:
        """``data`` (a sealed entry) with a signature around it; as it is where there is no secret."""
        return data if self.secret is None else _MAGIC + bytes([_VERSION]) + self._mac(data) + data

    def open(self, data: bytes) -> bytes:
        """The sealed entry inside ``data``. Raises Untrusted for a wrong signature, or for none where they are required; NewerRecord for
        a form of signature that this version does not know."""
        if not data.startswith(_MAGIC):
            if self.required:
                raise Untrusted("it is not signed")
            return data
        if len(data) <= OVERHEAD:
            raise BadRecord("too short for a signature")
        version, mac, entry = data[len(_MAGIC)], data[_HEADER:OVERHEAD], data[OVERHEAD:]
        if version > _VERSION and not self.required:
            raise NewerRecord(f"signed in form {version}, this version knows {_VERSION}")
        if version != _VERSION:
            raise Untrusted("another form of signature")
        if self.secret is not None and not hmac.compare_digest(mac, self._mac(entry)):
            raise Untrusted("the signature is wrong")
        return entry

    def _mac(self, entry: bytes) -> bytes:
        assert self.secret is not None
        return hmac.new(self.secret, _DOMAIN + entry, hashlib.sha256).digest()
