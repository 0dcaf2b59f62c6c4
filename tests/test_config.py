from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helion_rt.config import Config, LoopStrategy
from helion_rt.exc import ConfigError

_plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
_names = st.text("abcdefgh_", min_size=1, max_size=8).filter(lambda name: not name.startswith("_"))
_configs = st.builds(
    lambda blocks, loops, rest: Config(**{**rest, "block_sizes": blocks, "loop_strategies": loops}),
    st.lists(st.integers(1, 4096), max_size=4),
    st.lists(st.sampled_from(LoopStrategy), max_size=3),
    st.dictionaries(_names, _plain, max_size=3),
)


@given(_configs)
def test_plain_data_and_repr_round_trip(config: Config) -> None:
    again = Config.from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == config
    assert again.to_dict() == config.to_dict()
    assert hash(again) == hash(config)
    assert eval(repr(config), {"Config": Config}) == config
    assert copy.deepcopy(config) == config


def test_it_is_a_mapping_with_attributes() -> None:
    config = Config(block_sizes=[32, 64], loop_strategies=["grid"], num_warps=4)
    assert config.block_sizes == config["block_sizes"] == [32, 64]
    assert config.loop_strategies == [LoopStrategy.GRID] == ["grid"]
    assert dict(config) == {"block_sizes": [32, 64], "loop_strategies": ["grid"], "num_warps": 4}
    assert config.get("indexing") is None
    with pytest.raises(AttributeError, match="num_stages"):
        _ = config.num_stages


def test_it_cannot_be_changed_through_what_it_gives_out() -> None:
    config = Config(block_sizes=[32], extra={"a": [1]})
    config.block_sizes.append(64)
    config["extra"]["a"].append(2)
    assert config == Config(block_sizes=[32], extra={"a": [1]})
    with pytest.raises(AttributeError, match="immutable"):
        config.block_sizes = [1]
    with pytest.raises(TypeError):
        config["block_sizes"] = [1]  # type: ignore[index]


def test_equality_is_by_content() -> None:
    assert Config(a=1, block_sizes=(2,)) == Config(block_sizes=[2], a=1)
    assert Config(block_sizes=[2]) != Config(block_sizes=[4])
    assert Config(x=[]) != Config(x={})
    assert Config(block_sizes=[2]).replace(block_sizes=[4], b=None) == Config(block_sizes=[4], b=None)
    assert len({Config(block_sizes=[2]), Config(block_sizes=[2]), Config()}) == 2


@pytest.mark.parametrize("value", [0, 32, "32", [0], [-1], [1.0], [True], ["32"], None, [[32]]])
def test_block_sizes_must_be_positive_ints(value: Any) -> None:
    with pytest.raises(ConfigError, match="block_sizes must be a list of positive ints"):
        Config(block_sizes=value)


@pytest.mark.parametrize("value", ["grid", ["loop"], [None], [1], None])
def test_loop_strategies_must_be_known(value: Any) -> None:
    with pytest.raises(ConfigError, match="grid, emit_pipeline, unroll, fori"):
        Config(loop_strategies=value)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("grid_orders", [[0, 1], [[0, 2]], [[1, 1]], [[True, 0]], [[1.0, 0]], "10", None]),
        ("buffer_counts", [2, [0], [5], [True], [1.0], ["2"], None]),
        ("core_splits", [0, [-1], [True], ["0"], [[0]], None]),
    ],
)
def test_knobs_of_the_grid_must_be_well_formed(key: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError, match=f"{key} must be a list"):
            Config(**{key: value})


def test_what_means_something_here_is_not_the_users_own() -> None:
    known: dict[str, Any] = {"grid_orders": [[1, 0], None], "buffer_counts": [None, 3], "core_splits": [None, 1]}
    config = Config(**known, block_sizes=[8], num_warps=4)
    assert config.own == {"num_warps": 4}
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert {key: config[key] for key in known} == known


@pytest.mark.parametrize("value", [object(), float("nan"), float("inf"), {1: 2}, {1, 2}, b"x", [object()]])
def test_other_values_must_be_plain(value: Any) -> None:
    with pytest.raises(ConfigError, match="not plain data"):
        Config(anything=value)


@pytest.mark.parametrize("data", [[1], None, {1: 2}])
def test_from_dict_refuses_what_is_no_mapping(data: Any) -> None:
    with pytest.raises(ConfigError):
        Config.from_dict(data)


def test_a_helion_config_for_a_gpu_is_accepted() -> None:
    config = Config(block_sizes=[64, 64, 32], loop_orders=[[0, 1]], num_warps=8, indexing="pointer", pid_type="flat")
    assert config.loop_orders == [[0, 1]]


def test_a_choice_may_have_any_name() -> None:
    assert Config.from_dict({"self": 1}).replace(self=2).to_dict() == {"self": 2}
