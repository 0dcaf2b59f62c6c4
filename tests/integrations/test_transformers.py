"""helion_rt kernels inside transformers models: small models with random weights, with and without padding."""

from __future__ import annotations

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.masking_utils import bidirectional_mask_function, causal_mask_function  # noqa: E402

from helion_rt.integrations.transformers import Replaced, padding_mask, swap_in  # noqa: E402

LOWEST = torch.finfo(torch.float32).min


def small_bert() -> transformers.BertModel:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, max_position_embeddings=40
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "whole"])
def test_bert_gives_the_same_states(padded: bool) -> None:
    plain = small_bert()
    ours = small_bert()
    assert swap_in(ours) == Replaced(attention=2, layer_norm=5, gelu=2)
    tokens = torch.randint(1, 50, (3, 21))
    mask = torch.ones(3, 21, dtype=torch.int64)
    if padded:
        mask[0, 5:] = 0
        mask[1, :9] = 0
    with torch.no_grad():
        expected = plain(tokens, attention_mask=mask).last_hidden_state
        got = ours(tokens, attention_mask=mask).last_hidden_state
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_swap_in_runs_the_kernels_it_was_given() -> None:
    called = []

    def gelu(x: torch.Tensor) -> torch.Tensor:
        called.append(tuple(x.shape))
        return torch.nn.functional.gelu(x)

    model = small_bert()
    swap_in(model, "helion_rt_test", gelu=gelu)
    with torch.no_grad():
        model(torch.randint(1, 50, (2, 8)))
    assert called == [(2, 8, 64)] * 2


def test_parameters_are_the_models_own() -> None:
    model = small_bert()
    before = {name: p.data_ptr() for name, p in model.named_parameters()}
    swap_in(model)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == before


def test_causal_decoder_with_grouped_heads() -> None:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2
    )
    plain, ours = (transformers.LlamaModel(config).eval() for _ in range(2))
    ours.load_state_dict(plain.state_dict())
    assert swap_in(ours).attention == 1
    tokens = torch.randint(1, 50, (2, 17))
    mask = torch.ones(2, 17, dtype=torch.int64)
    mask[1, :4] = 0
    with torch.no_grad():
        expected, got = (model(tokens, attention_mask=mask).last_hidden_state for model in (plain, ours))
    # Queries that are padding themselves are nobody's business.
    torch.testing.assert_close(got[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-5)


def test_training_mode_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.eval"):
        swap_in(small_bert().train())


def test_what_attention_does_not_know_is_refused() -> None:
    model = small_bert()
    swap_in(model)
    function = transformers.AttentionInterface()["helion_rt"]
    q = torch.zeros(1, 1, 4, 8)
    with pytest.raises(ValueError, match="softcap"):
        function(model, q, q, q, None, softcap=30.0)
    with pytest.raises(ValueError, match="dropout"):
        function(model, q, q, q, None, dropout=0.1)


def test_padding_mask_is_two_dimensional_where_only_padding_is_masked() -> None:
    tokens = torch.tensor([[True, True, False]])
    shape = {"batch_size": 1, "q_length": 3, "kv_length": 3, "q_offset": 0, "kv_offset": 0}
    mask = padding_mask(mask_function=bidirectional_mask_function, attention_mask=tokens, **shape)
    assert mask is not None and mask.tolist() == [[0.0, 0.0, LOWEST]]
    assert padding_mask(mask_function=bidirectional_mask_function, attention_mask=None, **shape) is None
    causal = padding_mask(mask_function=causal_mask_function, attention_mask=tokens, **shape)
    assert causal is not None
    assert (causal[0, 0] == 0).tolist() == [[True, False, False], [True, True, False], [True, True, False]]
