"""Signatures: what is not signed with the secret of a tier that asks for it is a miss, and nobody can make one without the secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helion_rt.database import BadRecord, LocalTier, NewerRecord, Record, StoreKind, Trust, decode_record, encode_record
from helion_rt.database import tier as tier_module
from helion_rt.database.signing import OVERHEAD, Untrusted
from helion_rt.settings import Settings

Make = Callable[..., Record]
OURS, THEIRS = Trust(b"our secret"), Trust(b"their secret")
STRICT = Trust(b"our secret", required=True)
NOBODY = Trust()


@given(st.binary(min_size=1, max_size=200))
def test_what_is_sealed_is_opened(data: bytes) -> None:
    sealed = OURS.seal(data)
    assert OURS.open(sealed) == STRICT.open(sealed) == NOBODY.open(sealed) == data and len(sealed) == len(data) + OVERHEAD
    assert NOBODY.seal(data) == data
    with pytest.raises(Untrusted, match="wrong"):
        THEIRS.open(sealed)


def test_what_is_not_signed_is_refused_only_where_it_must_be(make_record: Make) -> None:
    data = encode_record(make_record())
    assert OURS.open(data) == NOBODY.open(data) == data
    with pytest.raises(Untrusted, match="not signed"):
        STRICT.open(data)


def test_every_flipped_bit_and_every_length_is_refused(make_record: Make) -> None:
    sealed = OURS.seal(encode_record(make_record()))
    for position in range(8 * len(sealed)):
        bad = bytearray(sealed)
        bad[position // 8] ^= 1 << position % 8
        for trust in (OURS, STRICT):
            with pytest.raises(BadRecord):
                decode_record(trust.open(bytes(bad)))
    for length in range(len(sealed)):
        with pytest.raises(BadRecord):
            decode_record(OURS.open(sealed[:length]))


def test_a_later_form_of_signature_is_left_alone(make_record: Make) -> None:
    later = b"HLRS\x02" + bytes(32) + encode_record(make_record())
    for trust in (OURS, NOBODY):
        with pytest.raises(NewerRecord):
            trust.open(later)
    with pytest.raises(Untrusted):
        STRICT.open(later)


def test_a_trust_that_makes_no_sense_is_refused() -> None:
    for arguments in ((b"", False), (None, True), ("text", False)):
        with pytest.raises(ValueError):
            Trust(*arguments)  # type: ignore[arg-type]
    assert "secret" not in repr(OURS)


def test_it_comes_from_the_settings() -> None:
    secret = "0123456789abcdef"
    environment = {"HELION_RT_SIGNING_KEY": secret, "HELION_RT_SIGNED_ONLY": "1"}
    assert Trust.from_settings(Settings.from_env(environment)) == Trust(secret.encode(), required=True)
    assert Trust.from_settings(Settings.from_env({})) == NOBODY


class TestTier:
    @pytest.fixture(autouse=True, params=[StoreKind.SQLITE, StoreKind.FILES], ids=["sqlite", "files"])
    def store(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tier_module, "is_network_file_system", lambda path: request.param is StoreKind.FILES)

    def test_who_takes_what(self, tmp_path: Path, make_record: Make) -> None:
        #                    none   ours   ours, required
        table = {NOBODY: (True, True, False), THEIRS: (True, False, False), OURS: (True, True, True)}
        for n, (writer, taken) in enumerate(table.items()):
            place = tmp_path / str(n)
            tier = LocalTier(place, trust=writer)
            assert tier.put(make_record(1)) and tier.put_program("alias", b"program")
            for reader, takes in zip((NOBODY, OURS, STRICT), taken, strict=True):
                tier = LocalTier(place, trust=reader)
                assert tier.get(make_record().key) == (make_record(1) if takes else None)
                assert tier.get_program("alias") == (b"program" if takes else None)
                assert list(tier.records()) == ([make_record(1)] if takes else [])
                assert (tier.stats().untrusted, tier.stats().bad) == (0 if takes else 3, 0)
            assert LocalTier(place, trust=writer).get(make_record().key) == make_record(1), "others' distrust has not removed it"

    def test_what_was_not_signed_is_signed_when_it_is_put_again(self, tmp_path: Path, make_record: Make) -> None:
        LocalTier(tmp_path).put(make_record(1))
        LocalTier(tmp_path, trust=OURS).put(make_record(1))
        assert LocalTier(tmp_path, trust=STRICT).get(make_record().key) == make_record(1)
        LocalTier(tmp_path).put(make_record(1))  # by one without a secret
        assert LocalTier(tmp_path, trust=STRICT).get(make_record().key) == make_record(1), "the signature stays"

    def test_what_is_not_trusted_gives_way_to_a_worse_record_that_is(self, tmp_path: Path, make_record: Make) -> None:
        for n, writer in enumerate((NOBODY, THEIRS)):
            LocalTier(tmp_path / str(n), trust=writer).put(make_record(9, quarantined=({"block_sizes": [3, 6]},)))
            tier = LocalTier(tmp_path / str(n), trust=STRICT)
            assert tier.put(make_record(1)) and tier.get(make_record().key) == make_record(1)
            assert tier.put(make_record(2)) and tier.get(make_record().key) == make_record(2), "signed ones merge"

    def test_a_signed_entry_of_another_key_is_bad(self, tmp_path: Path, make_record: Make) -> None:
        tier = LocalTier(tmp_path, trust=STRICT)
        tier.store.merge(f"r-{make_record().key.digest}", OURS.seal(encode_record(make_record(1, key=1))), lambda old, new: new)
        assert tier.get(make_record().key) is None and tier.stats().bad == 1

    def test_one_that_is_as_large_as_allowed_fits_with_its_signature(self, tmp_path: Path) -> None:
        tier, largest = LocalTier(tmp_path, trust=STRICT), bytes(4 * 1024 * 1024 - 60)
        assert tier.put_program("alias", largest) and LocalTier(tmp_path, trust=STRICT).get_program("alias") == largest
