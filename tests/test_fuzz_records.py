"""The fuzzer of the decoder, for a moment: ``python -m scripts.fuzz_records`` runs it for longer."""

from __future__ import annotations

import secrets

import pytest

from helion_rt import database
from scripts import fuzz_records


def test_nothing_unforeseen() -> None:
    start = secrets.randbelow(2**31)
    print("seed", start)
    seen = fuzz_records.fuzz(0, start, examples=100)
    assert seen["bad"] > 0 and seen["a record"] > 0 and sum(seen.values()) >= 1100


def test_it_would_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    real = database.decode_record

    def careless(data: bytes) -> database.Record:
        try:
            return real(data)
        except database.NewerRecord as error:
            raise KeyError("version") from error

    monkeypatch.setattr(database, "decode_record", careless)
    with pytest.raises(KeyError):
        fuzz_records.fuzz(0, 1, examples=300)


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_records, "ROUND", 20)
    monkeypatch.setattr(fuzz_records.fuzz, "__defaults__", (20,))
    assert fuzz_records.main(["--seconds", "0", "--seed", "5"]) == 0
    assert "220 inputs" in capsys.readouterr().out
