from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helion_rt.exc import ConfigError, TensorOperationInWrapper
from helion_rt.settings import DotPrecision, LogLevel, Settings, TuneMode, default_cache_dir


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
