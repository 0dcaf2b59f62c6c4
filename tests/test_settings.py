from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from helion_rt.exc import ConfigError, TensorOperationInWrapper
from helion_rt.settings import DotPrecision, LogLevel, Settings, TierMode, TierModes, TuneMode, default_cache_dir, without_password


def test_an_empty_environment_gives_the_defaults() -> None:
    settings = Settings.from_env({})
    assert settings == Settings()
    assert (settings.tune, settings.tune_seconds, settings.log_level) == (TuneMode.BACKGROUND, 60.0, LogLevel.WARNING)
    assert settings.cache_dir == default_cache_dir()
    assert Settings.from_env({"HELION_RT_TUNE": "", "HELION_RT_CACHE_DIR": " "}) == settings


def test_the_environment_is_read() -> None:
    env = {"HELION_RT_TUNE": " Sync ", "HELION_RT_TUNE_SECONDS": "2.5", "HELION_RT_CACHE_DIR": "~/there", "HELION_RT_LOG": "DEBUG"}
    settings = Settings.from_env(env)
    assert (settings.tune, settings.tune_seconds) == (TuneMode.SYNC, 2.5)
    assert settings.cache_dir == Path.home() / "there"
    assert settings.log_level.number == 10


def test_the_process_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELION_RT_TUNE_SECONDS", "7")
    assert Settings.from_env().tune_seconds == 7.0


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("HELION_RT_TUNE", "yes", "off, background, sync"),
        ("HELION_RT_LOG", "loud", "debug, info, warning, error"),
        ("HELION_RT_TUNE_SECONDS", "soon", "60"),
        ("HELION_RT_TUNE_SECONDS", "0", "60"),
        ("HELION_RT_TUNE_SECONDS", "nan", "60"),
        ("HELION_RT_TUNE_SECONDS", "inf", "60"),
    ],
)
def test_a_bad_variable_is_named_with_what_is_allowed(name: str, value: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({name: value})
    assert name in str(caught.value) and value in str(caught.value) and allowed in str(caught.value)


def test_a_kernel_has_settings_over_those_of_the_process() -> None:
    base = Settings(tune_seconds=5.0)
    rest = {"static_shapes": False, "dot_precision": "ieee"}
    settings = base.for_kernel({**rest, "tune": "off", "ignore_warnings": [TensorOperationInWrapper]})
    assert (settings.tune, settings.tune_seconds, settings.static_shapes) == (TuneMode.OFF, 5.0, False)
    assert settings.dot_precision is DotPrecision.IEEE
    assert settings.ignore_warnings == (TensorOperationInWrapper,)
    assert hash(settings) == hash(base.for_kernel({**rest, "tune": TuneMode.OFF, "ignore_warnings": (TensorOperationInWrapper,)}))
    assert base == Settings(tune_seconds=5.0)


def test_helion_settings_without_meaning_here_are_accepted_and_named() -> None:
    settings = Settings().for_kernel({"autotune_effort": "none", "print_output_code": True, "autotune_baseline_fn": print})
    assert settings.ignored == ("autotune_baseline_fn", "autotune_effort", "print_output_code")


def test_an_unknown_setting_is_refused_with_the_closest_name_and_the_place() -> None:
    with pytest.raises(ConfigError) as caught:
        Settings().for_kernel({"static_shape": True}, kernel="add", file=__file__, line=1)
    text = str(caught.value)
    assert "'static_shape'" in text and "did you mean 'static_shapes'?" in text and "'add'" in text and f"{__file__}:1" in text


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"qqqq": 1}, "settings:"),
        ({"static_shapes": 1}, "must be a bool"),
        ({"dot_precision": "half"}, "tf32, tf32x3, ieee"),
        ({"tune_seconds": True}, "above 0"),
        ({"ignore_warnings": ["x"]}, "warning classes"),
        ({"cache_dir": "/x"}, "HELION_RT_CACHE_DIR"),
    ],
)
def test_a_bad_value_is_refused(kwargs: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Settings().for_kernel(kwargs)


def test_as_plain_data() -> None:
    plain = Settings(cache_dir=Path("/c"), ignore_warnings=(TensorOperationInWrapper,)).to_dict()
    assert plain["tune"] == "background" and plain["cache_dir"] == "/c" and plain["ignore_warnings"] == ["TensorOperationInWrapper"]


def test_a_home_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="HELION_RT_CACHE_DIR='~no_such_user"):
        Settings.from_env({"HELION_RT_CACHE_DIR": "~no_such_user_of_helion_rt/x"})


def test_shared_tiers_and_their_modes() -> None:
    env = {"HELION_RT_SHARED": "file:///mnt/a, redis://u:secret@host:1/0 file:///mnt/a", "HELION_RT_TIERS": "shared=read-only, shipped=off"}
    settings = Settings.from_env({**env, "HELION_RT_LEASE_SECONDS": "5", "HELION_RT_RECORD_KEYS": "~/keys.jsonl"})
    assert settings.shared == ("file:///mnt/a", "redis://u:secret@host:1/0")
    assert settings.tiers == TierModes(shared=TierMode.READ_ONLY, shipped=TierMode.OFF) and settings.lease_seconds == 5.0
    assert settings.record_keys == Path.home() / "keys.jsonl"
    assert settings.to_dict()["shared"] == ["file:///mnt/a", "redis://***@host:1/0"]
    assert settings.to_dict()["tiers"] == {"local": "write-through", "shared": "read-only", "shipped": "off"}
    assert "secret" not in repr(settings) and hash(settings) == hash(dataclasses.replace(settings))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:p@ss/w@host/0", "redis://***@host/0"),
        ("s3://bucket/x?secret_key=abc&region=eu", "s3://bucket/x?secret_key=***&region=eu"),
        ("s3://bucket/x?Secret=abc", "s3://bucket/x?Secret=***"),
        ("redis:/:p@ss@host/0", "***@host/0"),  # no URL: that is told, and it is shown
        ("file:///mnt/a", "file:///mnt/a"),
    ],
)
def test_passwords_are_not_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HELION_RT_SHARED", "/mnt/tuning", "file:///mnt/tuning"),
        ("HELION_RT_TIERS", "remote=off", "local, shared, shipped"),
        ("HELION_RT_TIERS", "shared", "shared=read-only"),
        ("HELION_RT_TIERS", "shared=sometimes", "write-through, read-only, off"),
        ("HELION_RT_TIERS", "shipped=write-through", "read-only or off"),
        ("HELION_RT_LEASE_SECONDS", "0", "above 0"),
        ("HELION_RT_LEASE_SECONDS", "86401", "between 1 and 86400"),
        ("HELION_RT_SIGNED_ONLY", "1", "HELION_RT_SIGNING_KEY_FILE"),
        ("HELION_RT_SIGNING_KEY", "short", "5 bytes"),
        ("HELION_RT_SIGNING_KEY_FILE", "/nowhere/at/all", "cannot be read"),
    ],
)
def test_bad_settings_of_the_database_are_named(name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Settings.from_env({name: value})
    assert name in str(caught.value) and words in str(caught.value)


def test_a_signing_key_comes_from_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"0123456789abcdef0123\n")
    env = {"HELION_RT_SIGNING_KEY_FILE": str(file), "HELION_RT_SIGNED_ONLY": "1"}
    for mode, allowed in [(0o600, True), (0o400, True), (0o440, True), (0o644, False), (0o660, False), (0o602, False)]:
        file.chmod(mode)
        if allowed:
            settings = Settings.from_env(env)
            assert settings.signing_key == b"0123456789abcdef0123" and settings.signed_only
            assert "0123456789" not in repr(settings) + str(settings.to_dict()) and settings.to_dict()["signing_key"] == "set"
        else:
            with pytest.raises(ConfigError, match="read or changed by others"):
                Settings.from_env(env)
    file.chmod(0o600)
    with pytest.raises(ConfigError, match="both set"):
        Settings.from_env({**env, "HELION_RT_SIGNING_KEY": "0123456789abcdef"})
    with pytest.raises(ConfigError, match="Is a directory"):
        Settings.from_env({"HELION_RT_SIGNING_KEY_FILE": str(tmp_path)})


def test_tiers_belong_to_the_process() -> None:
    with pytest.raises(ConfigError, match="belongs to the process"):
        Settings().for_kernel({"shared": "file:///mnt/a"})
