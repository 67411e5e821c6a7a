"""Decoders with a cache: examples of one token, of an empty cache, and the sizes that follow from each other."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import onnxruntime
import pytest
import torch

from onnx_fx_export import InvalidArgumentError, export
from onnxops_decomp.exporting import cache_argument

transformers = pytest.importorskip("transformers")

VOCABULARY, LAYERS, WIDTH = 32, 2, 8
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}
CACHE = cache_argument(transformers.LlamaForCausalLM)


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**COMMON)), 1


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**COMMON)), 1


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=LAYERS, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=1
    )
    return transformers.GPT2LMHeadModel(config), 2


def inputs(heads: int, batch: int, new: int, past: int):
    layers = [(torch.randn(batch, heads, past, WIDTH), torch.randn(batch, heads, past, WIDTH)) for _ in range(LAYERS)]
    return {
        "input_ids": torch.randint(0, VOCABULARY, (batch, new)),
        "attention_mask": torch.ones(batch, past + new, dtype=torch.int64),
        CACHE: transformers.DynamicCache(layers),
    }


def tensors(arguments):
    layers = arguments[CACHE].layers
    cache = [tensor for layer in layers for tensor in (layer.keys, layer.values)]
    return [arguments["input_ids"], arguments["attention_mask"], *cache]


NAMES = {
    "input_ids": {0: "b", 1: "s"},
    "attention_mask": {0: "b", 1: "t"},
    CACHE: [{0: "b", 2: "p"}] * (2 * LAYERS),
}
SIZES = [(2, 3, 5), (1, 1, 5), (2, 1, 4), (3, 2, 1), (1, 1, 1), (2, 3, 0), (1, 1, 0)]


@pytest.mark.parametrize(
    ("decoder", "example"),
    [(llama, (2, 1, 5)), (llama, (2, 3, 0)), (llama, (1, 1, 0)), (qwen2, (2, 3, 5)), (gpt2, (2, 1, 5))],
)
def test_prefill_and_decoding_are_one_graph_whatever_the_example(decoder, example) -> None:
    torch.manual_seed(0)
    model, heads = decoder()
    model.eval()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        program = export(model, (), kwargs=inputs(heads, *example), dynamic_shapes=NAMES)
    # GPT-2 has as many positions as rows of a table.
    assert ["p + s <= 64" in str(warning.message) for warning in caught] == [True] * (decoder is gpt2)
    session = onnxruntime.InferenceSession(program.model_proto.SerializeToString())
    names = [value.name for value in session.get_inputs()]
    for sizes in SIZES:
        arguments = inputs(heads, *sizes)
        with torch.no_grad():
            expected = model(**copy.deepcopy(arguments)).logits
        feeds = dict(zip(names, (x.numpy() for x in tensors(arguments)), strict=True))
        np.testing.assert_allclose(session.run(None, feeds)[0], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(program(**arguments).logits, expected, rtol=1e-4, atol=1e-5)
    wrong = inputs(heads, 2, 3, 5) | {"attention_mask": torch.ones(2, 10, dtype=torch.int64)}
    with pytest.raises(InvalidArgumentError, match=r"captured for .*t"):
        program(**wrong)
