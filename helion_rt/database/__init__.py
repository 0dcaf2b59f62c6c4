"""The tuning database: keys, records, and the tiers that hold them. Plain data only: nothing read is ever executed."""

from .codec import BadRecord, NewerRecord, decode_record, encode_record
from .key import Key
from .lock import host_lock, work_lock
from .record import Evidence, EvidenceKind, Origin, Record, Status, better, machine_name, utc_now
from .signing import Trust
from .tier import LocalTier, Stats, StoreKind, Tier, open_local

__all__ = [
    "BadRecord", "Evidence", "EvidenceKind", "Key", "LocalTier", "NewerRecord", "Origin", "Record", "Stats", "Status",
    "StoreKind", "Tier", "Trust", "better", "decode_record", "encode_record", "host_lock", "machine_name", "open_local", "utc_now",
    "work_lock",
]  # fmt: skip
