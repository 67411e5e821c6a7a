"""Models with an encoder become folders of two graphs, which generate token for token like the models' own search."""

from __future__ import annotations

import wave

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from language_models import ENCODER_DECODERS, input_shapes, language_model
from test_generation_sources import letters
from transformers import WhisperFeatureExtractor

from onnx_fx_export import InvalidArgumentError, RuntimeSupportError, VerificationError
from onnx_fx_export.generation import GenerationFolder, Generator, export_folder
from onnx_fx_export.generation.kinds import kind_of
from onnx_fx_export.generation.shared_weights import DATA_FILE, save_together
from onnx_fx_export.generation.verifying import verify_folder

TOKENS = [[5, 9, 4, 7, 0, 0], [8, 3, 6, 9, 11, 12]]


@pytest.fixture(scope="module")
def bart(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model, and the folder that was written of it and verified."""
    model = language_model("bart")
    return model, export_folder(model, tmp_path_factory.mktemp("bart") / "out", engine="onnxruntime")


def test_prompts_alone_and_padded_are_compared(bart):
    assert [compared.prompts for compared in bart[1].compared] == [(1,), (7,), (100,), (3, 11, 6)]
    assert {compared.tokens for compared in bart[1].compared} == {64}


def test_the_decoder_reads_what_the_encoder_has_made_once(bart):
    _, folder = bart
    decoder = input_shapes(folder.path / "decoder.onnx")
    products = [
        node
        for node in onnx.load(folder.path / "decoder.onnx", load_external_data=False).graph.node
        if "MatMul" in node.op_type
    ]

    assert input_shapes(folder.path / "encoder.onnx").keys() == {"input_ids", "attention_mask"}
    assert "encoder_hidden_states" not in decoder
    assert decoder["input_ids"] == ["batch_size", "sequence_length"]
    assert decoder["encoder_attention_mask"] == ["batch_size", "encoder_sequence_length"]
    assert decoder["cross_key_values.1.value"] == ["batch_size", 4, "encoder_sequence_length", 8]
    # Of each layer, query and output of the attention to what was encoded, and six other products; then the head.
    assert len(products) == 2 * (2 + 6) + 1


@pytest.fixture(scope="module")
def mbart(tmp_path_factory) -> tuple[torch.nn.Module, GenerationFolder]:
    """A model whose settings force a language, and the folder that was written of it."""
    model = language_model("mbart", encoder_layers=1, decoder_layers=1, vocab_size=2048)
    model.generation_config.forced_bos_token_id = 17
    model.generation_config.forced_eos_token_id = None
    return model, export_folder(model, tmp_path_factory.mktemp("mbart") / "out", engine="onnxruntime", verify=False)


def test_what_both_graphs_read_is_stored_once(mbart):
    model, folder = mbart
    embeddings = {
        file: [
            {entry.key: entry.value for entry in tensor.external_data}
            for tensor in onnx.load(folder.path / file, load_external_data=False).graph.initializer
            if list(tensor.dims) == [2048, 32]
        ]
        for file in ("encoder.onnx", "decoder.onnx")
    }

    assert embeddings["encoder.onnx"] == embeddings["decoder.onnx"][:1] != []
    assert [name for name in folder.files if name.endswith(".data")] == ["model.onnx.data"]
    weights = sum(weight.numel() * 4 for weight in model.parameters())  # the head shares the embedding's
    transposed_head = 2048 * 32 * 4
    assert folder.files["model.onnx.data"] < (weights + transposed_head) * 1.05 + 4096 * 100


def test_weights_that_begin_alike_are_compared_to_their_ends(tmp_path):
    first = np.arange(40_000, dtype=np.float32)
    other, wider = first.copy(), np.append(first, np.float32(0))
    other[-1] = 0
    weights = {"a.onnx": [first, other, first.reshape(200, 200)], "b.onnx": [other, wider, first.view(np.int32)]}
    models = {}
    for file, arrays in weights.items():
        values = [ir.Value(name=f"w{i}", const_value=ir.tensor(array)) for i, array in enumerate(arrays)]
        nodes = [ir.node("Identity", [value]) for value in values]
        graph = ir.Graph([], [node.outputs[0] for node in nodes], nodes=nodes, initializers=values, name="main_graph")
        models[file] = ir.Model(graph, ir_version=10)

    save_together(tmp_path, models)

    for file, arrays in weights.items():
        stored = onnx.load(tmp_path / file).graph.initializer
        for array, tensor in zip(arrays, stored, strict=True):
            np.testing.assert_array_equal(onnx.numpy_helper.to_array(tensor), array)
    pages = [-(-array.nbytes // 4096) for array in (first, other, wider)]
    assert (sum(pages) - 1) * 4096 < (tmp_path / DATA_FILE).stat().st_size <= sum(pages) * 4096


def test_rows_end_where_the_model_ends_them(bart):
    model, folder = bart
    tokens = torch.tensor(TOKENS)
    mask = (tokens != 0).long()
    settings = {"do_sample": False, "num_beams": 1, "max_new_tokens": 20}
    stop = int(model.generate(tokens, attention_mask=mask, **settings)[1, 5])
    generator = Generator(folder.path)
    generator.config["model"]["eos_token_id"] = stop

    found = generator.generate(tokens.numpy(), mask.numpy(), max_new_tokens=20)

    wanted = model.generate(tokens, attention_mask=mask, eos_token_id=stop, **settings).numpy()
    np.testing.assert_array_equal(found, wanted)
    assert len(np.unique(wanted)) > 4  # so that equal tokens say something


@pytest.mark.parametrize("begun", [[1, 9, 3], [9, 3], [9], [1]])
def test_what_the_decoder_begins_with_may_be_given(begun, mbart):
    model, folder = mbart
    tokens = torch.tensor(TOKENS[1:])

    found = Generator(folder.path).generate(tokens.numpy(), decoder_input_ids=np.array([begun]), max_new_tokens=9)

    settings = {"do_sample": False, "num_beams": 1, "max_new_tokens": 9}
    wanted = model.generate(tokens, decoder_input_ids=torch.tensor([begun]), **settings)
    np.testing.assert_array_equal(found, wanted.numpy())


@pytest.mark.parametrize("most", [1, 6])
@pytest.mark.parametrize("forced", [2, [17, 9], None])
def test_a_text_as_long_as_asked_for_ends_as_the_settings_force(forced, most, bart):
    model, folder = bart
    tokens, generator = torch.tensor(TOKENS), Generator(folder.path)
    assert generator.forced_end == [model.generation_config.forced_eos_token_id] == [2]
    generator.forced_end = [] if forced is None else np.atleast_1d(forced).tolist()

    found = generator.generate(tokens.numpy(), (tokens != 0).numpy(), max_new_tokens=most)

    settings = {"do_sample": False, "num_beams": 1, "max_new_tokens": most, "forced_eos_token_id": forced}
    wanted = model.generate(tokens, attention_mask=(tokens != 0).long(), **settings).numpy()
    np.testing.assert_array_equal(found, wanted)


def test_the_language_that_the_settings_force_comes_first(mbart):
    model, folder = mbart

    found = Generator(folder.path).generate(np.array(TOKENS[1:]), max_new_tokens=9)

    wanted = model.generate(torch.tensor(TOKENS[1:]), do_sample=False, num_beams=1, max_new_tokens=9)
    np.testing.assert_array_equal(found, wanted.numpy())


def test_sounds_are_read(tmp_path):
    model = language_model("whisper")

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [(compared.prompts, compared.unit) for compared in folder.compared] == [
        ((40,), "frames"),
        ((40, 40, 40), "frames"),
    ]
    assert input_shapes(folder.path / "encoder.onnx") == {"audio_features": ["batch_size", 8, 40]}
    with pytest.raises(InvalidArgumentError, match="also reads audio_features"):
        Generator(folder.path).generate()


def test_samples_of_any_number_are_read(tmp_path):
    model = language_model("moonshine", decoder_num_hidden_layers=1)
    samples = torch.randn(2, 9000, generator=torch.Generator().manual_seed(1))

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert input_shapes(folder.path / "encoder.onnx") == {"input_values": ["batch_size", "sample_count"]}
    for sound in (samples, samples[:1, :4000]):
        found = Generator(folder.path).generate(input_values=sound.numpy(), max_new_tokens=12)
        wanted = model.generate(sound, do_sample=False, max_new_tokens=12)
        np.testing.assert_array_equal(found, wanted.numpy())
        assert len(np.unique(found)) > 4  # so that equal tokens say something


def test_patches_of_images_are_read(tmp_path):
    model = language_model("pix2struct")
    places = torch.cartesian_prod(torch.arange(1, 5), torch.arange(1, 4)).float()
    numbers = torch.randn(2, 12, 12, generator=torch.Generator().manual_seed(1))
    patches = torch.cat([places.expand(2, -1, -1), numbers], 2)
    mask = torch.tensor([[1.0] * 12, [1.0] * 6 + [0.0] * 6])

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert [(compared.prompts, compared.unit) for compared in folder.compared] == [
        ((1,), "patches"),
        ((7,), "patches"),
        ((100,), "patches"),
        ((3, 11, 6), "patches"),
    ]
    generator = Generator(folder.path)
    for read, parts in ((patches, mask), (patches[:, :1], mask[:, :1])):
        found = generator.generate(flattened_patches=read.numpy(), attention_mask=parts.numpy(), max_new_tokens=12)
        wanted = model.generate(flattened_patches=read, attention_mask=parts, do_sample=False, max_new_tokens=12)
        np.testing.assert_array_equal(found, wanted.numpy())
        assert len(np.unique(found)) > 4  # so that equal tokens say something
    with pytest.raises(InvalidArgumentError, match="also reads attention_mask"):
        generator.generate(flattened_patches=patches.numpy())
    for wrong in (np.ones((2, 11)), 2 * np.ones((2, 12))):
        with pytest.raises(InvalidArgumentError, match="A mask is 1 for what is read"):
            generator.generate(flattened_patches=patches.numpy(), attention_mask=wrong)


def captioner(**settings: object) -> torch.nn.Module:
    """A model that writes about images, made of two that know nothing of each other (as TrOCR and Donut are)."""
    import transformers

    eyes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(image_size=16, patch_size=8, **eyes, **settings),
        transformers.TrOCRConfig(
            vocab_size=64, d_model=32, decoder_layers=1, decoder_attention_heads=2, decoder_ffn_dim=32, init_std=0.3
        ),
    )
    config.decoder_start_token_id, config.pad_token_id = 1, 0
    torch.manual_seed(0)
    return transformers.VisionEncoderDecoderModel(config).eval()


def test_images_are_read(tmp_path):
    model = captioner()
    images = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 3

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert input_shapes(folder.path / "encoder.onnx") == {"pixel_values": ["batch_size", 3, 16, 16]}
    found = Generator(folder.path).generate(pixel_values=images.numpy(), max_new_tokens=12)
    wanted = model.generate(images, do_sample=False, max_new_tokens=12)
    np.testing.assert_array_equal(found, wanted.numpy())
    assert len(np.unique(found)) > 4  # so that equal tokens say something


def test_genai_reads_sounds_of_its_length(tmp_path):
    genai = pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "num_mel_bins": 80}
    model = language_model("whisper", max_source_positions=1500, **sizes)

    folder = export_folder(model, tmp_path / "out", tokenizer=letters())

    assert [compared.prompts for compared in folder.compared] == [(3000,), (3000, 3000, 3000)]
    samples = (np.random.default_rng(0).standard_normal(32000) * 3000).astype(np.int16)
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16000, len(samples), "NONE", ""))
        file.writeframes(samples.tobytes())
    processor = genai.Model(str(folder.path)).create_multimodal_processor()
    found = processor("a", audios=genai.Audios.open(str(tmp_path / "sound.wav")))["audio_features"].as_numpy()
    extractor = WhisperFeatureExtractor(feature_size=80)
    wanted = extractor(samples / np.float32(32768), sampling_rate=16000, return_tensors="np").input_features
    assert found.shape == wanted.shape
    inside = np.s_[..., 2:198]  # at both ends of a sound the two take something else to be beyond it
    np.testing.assert_allclose(found[inside], wanted[inside], atol=1e-3)


def test_a_relative_position_is_that_of_later_steps_too(tmp_path):
    folder = export_folder(language_model("t5"), tmp_path / "out", engine="onnxruntime")

    assert [compared.prompts for compared in folder.compared] == [(1,), (7,), (100,), (3, 11, 6)]


def test_weights_are_rounded(tmp_path):
    model = language_model("bart", encoder_layers=1, decoder_layers=1)

    folder = export_folder(model, tmp_path / "out", "int4", engine="onnxruntime")

    # Six products of the encoder's layer, ten of the decoder's, and the head.
    assert folder.quantization.layers == 17
    assert len(folder.compared) == 4


def test_an_encoder_that_attends_by_blocks_reads_whole_ones(tmp_path):
    model = language_model("longt5", num_layers=1)
    tokens, mask = torch.tensor(TOKENS), torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert input_shapes(folder.path / "encoder.onnx")["input_ids"] == ["batch_size", "16*block_count"]
    for repeated in (1, 3, 5):  # shorter than the fewest blocks, one more than they are, and longer
        prompts, seen = tokens.repeat(1, repeated), mask.repeat(1, repeated)
        wanted = model.generate(prompts, attention_mask=seen, do_sample=False, max_new_tokens=12)
        found = Generator(folder.path).generate(prompts.numpy(), seen.numpy(), max_new_tokens=12)
        np.testing.assert_array_equal(found, wanted.numpy())
        assert len(np.unique(found)) > 4  # so that equal tokens say something


def test_a_decoder_that_reads_one_token_behind_its_cache_is_a_graph_for_one(tmp_path):
    model = language_model("fsmt", encoder_layers=1, decoder_layers=1)
    prompts, begun = torch.tensor(TOKENS[1:]), torch.tensor([[1, 9, 3]])

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)

    assert input_shapes(folder.path / "decoder.onnx")["input_ids"] == ["batch_size", 1]
    generator = Generator(folder.path)
    wanted = model.generate(prompts, do_sample=False, num_beams=1, max_new_tokens=12)
    np.testing.assert_array_equal(generator.generate(prompts.numpy(), max_new_tokens=12), wanted.numpy())
    found = next(generator.logits(prompts.numpy(), decoder_input_ids=begun.numpy()))
    with torch.no_grad():
        wanted = model(prompts, decoder_input_ids=begun, use_cache=False).logits[:, -1]
    np.testing.assert_allclose(found, wanted.numpy(), atol=1e-4)


def test_encoder_and_decoder_may_know_different_numbers_of_tokens():
    kind = kind_of(language_model("fsmt", encoder_layers=1, decoder_layers=1))

    assert max(row.max() for row in kind.draw((500,))) == 47


def test_a_model_that_reads_one_token_goes_on_from_several():
    kind = kind_of(language_model("fsmt"))
    (row,) = kind.batch((100,)).rows
    tokens = kind.generate(kind.extended(row, np.zeros(0, np.int64)), 12)

    found = kind.generate(kind.extended(row, tokens[:4]), 8)

    np.testing.assert_array_equal(found, tokens[4:])


def test_a_cache_that_forgets_what_the_masks_show_is_refused(tmp_path):
    model = language_model("bart", encoder_layers=1, decoder_layers=1, sliding_window=8)

    with pytest.raises(InvalidArgumentError, match="its cache keeps 8 tokens, but its masks let a token see those"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("led", "its encoder decides by the values of global_attention_mask"),
        ("prophetnet", "its logits for a token depend on those behind it"),
        ("bigbird_pegasus", "its attention_type is 'block_sparse', and .* made it 'original_full' .* set config.att"),
        ("speech_to_text", "does not say of which one size the sounds are that it reads"),
        ("switch", "cannot be run: its own code raises ValueError: .* Call its generate"),
    ],
)
def test_a_model_with_an_encoder_of_another_kind_is_refused(name, text, tmp_path):
    with pytest.raises(InvalidArgumentError, match=text):
        export_folder(language_model(name), tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


def test_blocks_that_runtimes_would_find_elsewhere_are_refused(tmp_path):
    model = language_model("longt5_global", local_radius=5, global_block_size=3)

    with pytest.raises(InvalidArgumentError, match=r"global_block_size, which is 3, .* where it is no power of two"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_the_decoder_starts_with_one_token(tmp_path):
    model = language_model("t5", num_layers=1, num_decoder_layers=1)
    model.generation_config.decoder_start_token_id = [3]

    with pytest.raises(InvalidArgumentError, match=r"does not say which one token .*_start_token_id, which is \[3"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)


def test_a_model_that_is_told_how_to_compute_all_texts_is_written(tmp_path):
    model = language_model("bigbird_pegasus", attention_type="original_full")
    assert export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False).nodes


@pytest.mark.wide
@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_every_architecture_generates_alike(name, tmp_path):
    folder = export_folder(language_model(name), tmp_path / "out", engine="onnxruntime")

    assert {compared.tokens for compared in folder.compared} == {64}


@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("t5", {"tie_word_embeddings": False, "d_kv": 5, "num_decoder_layers": 1}),
        ("t5", {"feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 6, "tie_word_embeddings": True}),
        ("mt5", {"tie_word_embeddings": True, "d_kv": 16}),
        ("umt5", {"relative_attention_num_buckets": 8, "num_layers": 1, "num_decoder_layers": 1}),
        ("bart", {"scale_embedding": True, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5, "decoder_layers": 3}),
        ("mbart", {"scale_embedding": True, "tie_word_embeddings": False, "encoder_layers": 1}),
        ("marian", {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 48, "scale_embedding": True}),
        ("m2m_100", {"scale_embedding": True, "encoder_layerdrop": 0.3}),
        ("pegasus_x", {"scale_embedding": True, "num_global_tokens": 3, "block_size": 6, "encoder_layers": 3}),
        ("fsmt", {"scale_embedding": True}),
        ("whisper", {"scale_embedding": True, "encoder_layers": 1, "decoder_layers": 3, "decoder_layerdrop": 0.5}),
    ],
)
def test_unusual_configurations_generate_alike(settings, name, tmp_path):
    folder = export_folder(language_model(name, **settings), tmp_path / "out", engine="onnxruntime")

    assert {compared.tokens for compared in folder.compared} == {64}


def test_a_folder_of_another_model_is_found_out(bart):
    other = language_model("bart", scale_embedding=True)

    with pytest.raises(VerificationError, match=r"After a prompt of 1 tokens, the logits differ"):
        verify_folder(kind_of(other), bart[1].path, "onnxruntime", str)


@pytest.mark.parametrize("name", ["t5", "whisper"])
def test_genai_is_refused_where_it_has_no_such_type(name, tmp_path):
    pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    with pytest.raises(InvalidArgumentError, match=r"GenAI cannot run \w+\. Pass engine='onnxruntime'"):
        export_folder(language_model(name), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_too_many_tokens_are_refused(bart):
    generator = Generator(bart[1].path)

    with pytest.raises(InvalidArgumentError, match="would have 301 tokens, but the model takes 256 at most"):
        generator.generate(np.array(TOKENS), max_new_tokens=300)
    with pytest.raises(RuntimeSupportError, match="ONNX Runtime cannot run"):
        generator.generate(np.zeros((1, 300), np.int64))


@pytest.mark.wide
@pytest.mark.parametrize("name", ["t5", "bart", "longt5_global", "pix2struct"])
def test_half_precision_is_written(name, tmp_path):
    folder = export_folder(language_model(name).half(), tmp_path / "out", "fp16", engine="onnxruntime")

    assert {compared.tokens for compared in folder.compared} == {64}


def test_blocks_that_padding_changes_are_refused(tmp_path):
    model = language_model("longt5", num_layers=1).half()

    with pytest.raises(InvalidArgumentError, match=r"in torch.float16: its encoder .* something else of a text"):
        export_folder(model, tmp_path / "out", "fp16", engine="onnxruntime", verify=False)


def test_a_saved_model_is_read_from_its_folder(tmp_path):
    language_model("t5", num_layers=1).save_pretrained(tmp_path / "model")

    folder = export_folder(tmp_path / "model", tmp_path / "out", engine="onnxruntime", verify=False, tokenizer=False)

    assert {"encoder.onnx", "decoder.onnx", "genai_config.json"} <= folder.files.keys()
