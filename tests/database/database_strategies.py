"""Hypothesis strategies for keys, configs and the text in them."""

from __future__ import annotations

from hypothesis import strategies as st

from helion_rt.database import Key

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=["Cs"])) | st.binary(),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=12,
)
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = st.builds(Key, st.from_regex(r"[0-9a-f]{8,64}", fullmatch=True), plain, words, words)
config_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
