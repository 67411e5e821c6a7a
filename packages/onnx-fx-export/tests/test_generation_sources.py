"""What is said about a language model's source, on the command line and by export_folder."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
from click.testing import Result
from language_models import language_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from onnx_fx_export import InvalidArgumentError, SaveError
from onnx_fx_export.cli import generation_app, run
from onnx_fx_export.generation import export_folder, merged_weights
from onnx_fx_export.generation.streaming import streamed

FACTORY = """
from language_models import language_model

def model():
    return language_model("llama", num_hidden_layers=1)

def three():
    return 1, 2, 3

def raising():
    raise KeyError("weights")
"""


def letters() -> object:
    """A tokenizer of the kind that GPT-2 has, of three tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "Ġ": 5, "Ġb": 6}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("Ġ", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """A folder of a small model without a tokenizer."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    language_model("llama", num_hidden_layers=1).save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    (tmp_path / "models.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(*arguments: str) -> Result:
    return CliRunner().invoke(generation_app, [*arguments])


def test_a_folder_becomes_a_folder_with_its_tokenizer(saved, here):
    letters().save_pretrained(here / "letters")
    for file in [*saved.iterdir(), *(here / "letters").iterdir()]:
        (here / file.name).write_bytes(file.read_bytes())

    result = command(".", "-o", "out", "--engine", "onnxruntime", "--json")

    assert result.exit_code == 0, result.stderr
    summary = json.loads(result.stdout)
    assert {"model.onnx", "genai_config.json", "tokenizer.json"} <= summary["files"].keys()
    assert [compared["prompts"] for compared in summary["compared"]] == [[1], [7], [100], [3, 11, 6]]
    assert "export" in result.stderr


def test_genai_reads_the_tokenizer(saved, tmp_path):
    genai = pytest.importorskip("onnxruntime_genai", reason="the engine of this test is an optional package")
    export_folder(saved, tmp_path / "out", tokenizer=letters(), verify=False)

    tokenizer = genai.Tokenizer(genai.Model(str(tmp_path / "out")))

    assert tokenizer.encode("a ba").tolist() == letters()("a ba").input_ids == [3, 6, 3]
    assert tokenizer.decode([6, 3]) == " ba"


def test_a_table_tells_what_was_written(here):
    result = command("models.py:model", "-o", "out", "--engine", "onnxruntime")

    assert result.exit_code == 0, result.stderr
    assert "prompts of 3, 11, 6 tokens" in result.stdout
    assert "64 tokens equal" in result.stdout
    assert "model.onnx.data" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["nowhere"], "neither a folder of a model nor package.module:factory"),
        (["models.py:three"], "it returned 3 values"),
        (["models.py:raising"], "failed: KeyError: 'weights'"),
        (["models.py:model", "--engine", "vllm"], "engine='vllm' is not known"),
        (["models.py:model", "--precision", "int3"], "precision='int3' is not known"),
    ],
)
def test_a_wrong_command_exits_with_2(arguments, text, here):
    result = command(*arguments, "-o", "out")

    assert result.exit_code == 2
    assert text in result.stderr
    assert sorted(path.name for path in here.iterdir() if path.name != "__pycache__") == ["models.py"]


def test_the_command_has_its_own_help(capsys):
    with pytest.raises(SystemExit) as ended:
        run(["generation", "--help"])

    assert ended.value.code == 0
    assert "--precision" in capsys.readouterr().out


def test_a_missing_tokenizer_is_told_of(saved, tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"has no tokenizer.*tokenizer=False"):
        export_folder(saved, tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


def test_a_missing_weight_is_not_made_up(saved, tmp_path):
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(saved / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})

    with pytest.raises(InvalidArgumentError, match=r"lacks weights of LlamaForCausalLM.*model\.norm\.weight"):
        export_folder(tmp_path, tmp_path / "out", engine="onnxruntime", tokenizer=False)
    assert not (tmp_path / "out").exists()


def test_a_broken_checkpoint_is_an_error_of_the_package(saved, tmp_path):
    (tmp_path / "config.json").write_text((saved / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"no weights")

    with pytest.raises(InvalidArgumentError, match="transformers cannot load"):
        export_folder(tmp_path, tmp_path / "out", engine="onnxruntime", tokenizer=False)


STREAMED = [
    ("llama", "bfloat16", "fp32"),
    ("gpt2", "float32", "int4"),
    ("llama", "float32", "fp16"),
    ("gpt_oss", "bfloat16", "fp32"),
    ("qwen3_moe", "bfloat16", "int4"),
]


@pytest.mark.parametrize(("name", "stored", "precision"), STREAMED)
def test_weights_that_are_read_while_they_are_written_give_the_same_folder(
    name, stored, precision, tmp_path, monkeypatch
):
    if name in ("gpt_oss", "qwen3_moe") and tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 31):
        pytest.skip("experts as one operator need ONNX Runtime 1.23, quantized ones 1.31")
    monkeypatch.setattr(merged_weights, "_LARGE", 1 << 10)
    layers = {} if name == "gpt2" else {"num_hidden_layers": 1}
    layers |= {"layer_types": ["full_attention"]} if name == "gpt_oss" else {}
    language_model(name, **layers).to(getattr(torch, stored)).save_pretrained(tmp_path / "model", max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    dtype = torch.float16 if precision == "fp16" else torch.float32
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=dtype)
    whole = export_folder(model, tmp_path / "whole", precision, verify=False)

    streamed = export_folder(tmp_path / "model", tmp_path / "streamed", precision, verify=False, tokenizer=False)

    assert streamed.files == whole.files
    assert all((streamed.path / file).read_bytes() == (whole.path / file).read_bytes() for file in whole.files)
    if whole.quantization is not None:
        assert streamed.quantization.layers == whole.quantization.layers
        assert streamed.quantization.difference is None


@pytest.fixture
def experts(tmp_path, monkeypatch) -> Path:
    """A checkpoint with a tensor for each expert."""
    monkeypatch.setattr(merged_weights, "_LARGE", 1 << 10)
    language_model("mixtral", num_hidden_layers=1).save_pretrained(tmp_path / "model")
    assert "model.layers.0.block_sparse_moe.experts.3.w2.weight" in load_file(tmp_path / "model" / "model.safetensors")
    return tmp_path / "model"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list what a process has mapped")
def test_experts_that_are_joined_lie_in_files(experts, tmp_path):
    stream, _ = streamed(experts, False, torch.float32, tmp_path)

    maps = [line.split(maxsplit=5) for line in Path("/proc/self/maps").read_text().splitlines()]
    places = [(*(int(end, 16) for end in line[0].split("-")), line[5]) for line in maps if len(line) > 5]
    for weight in stream.source.model.layers[0].mlp.experts.parameters():
        (file,) = (file for begin, end, file in places if begin <= weight.data_ptr() < end)
        assert file.startswith(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_windows_that_a_checkpoint_does_not_have_are_refused(saved, tmp_path):
    with pytest.raises(InvalidArgumentError, match="windowed_caches=True would change nothing"):
        export_folder(saved, tmp_path / "out", verify=False, tokenizer=False, windowed_caches=True)
    assert not list(tmp_path.iterdir())


def test_no_room_for_joined_experts_is_an_error(experts, tmp_path, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)

    with pytest.raises(SaveError, match=r"joined from several .* cannot be stored in .*: No space left"):
        export_folder(experts, tmp_path / "out", engine="onnxruntime", verify=False, tokenizer=False)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_nothing_that_stood_in_for_a_weight_is_written(saved, tmp_path, monkeypatch):
    monkeypatch.setattr("onnx_fx_export.generation.streaming.apply_weights", lambda *args, **options: [])
    with pytest.raises(InvalidArgumentError, match="was not found in the checkpoint"):
        export_folder(saved, tmp_path / "out", verify=False, tokenizer=False)
    assert not list(tmp_path.iterdir())


def changed(saved: Path, folder: Path, file: str, content: str) -> Path:
    """Copy the folder of a model, with another file in it."""
    folder.mkdir()
    for own in saved.iterdir():
        (folder / own.name).write_bytes(own.read_bytes())
    (folder / file).write_text(content)
    return folder


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("model.safetensors", "", "transformers cannot load .*: Error while deserializing header"),
        ("model.safetensors", "x" * 500, "transformers cannot load .*: Error while deserializing header"),
        ("config.json", "{", "transformers cannot load .* not a valid JSON file"),
        ("config.json", "{}", "transformers cannot load .*model_type"),
        ("generation_config.json", "{oops", "transformers cannot load .*generation_config"),
    ],
)
def test_broken_files_are_named(file, content, message, verify, saved, tmp_path):
    source = changed(saved, tmp_path / "source", file, content)

    with pytest.raises(InvalidArgumentError, match=f"(?s){message}"):
        export_folder(source, tmp_path / "out", tokenizer=False, engine="onnxruntime", verify=verify)
    assert [path.name for path in tmp_path.iterdir()] == ["source"]


def test_weights_of_other_shapes_are_named(saved, tmp_path):
    config = json.loads((saved / "config.json").read_text())
    source = changed(saved, tmp_path / "source", "config.json", json.dumps({**config, "intermediate_size": 48}))

    with pytest.raises(InvalidArgumentError, match=r"3 weights of .* such as model.layers.0.mlp.down_proj.weight"):
        export_folder(source, tmp_path / "out", tokenizer=False, engine="onnxruntime")


def test_code_that_comes_with_weights_is_not_run(saved, tmp_path):
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}}
    source = changed(saved, tmp_path / "source", "config.json", json.dumps(config))
    (source / "own.py").write_text("raise SystemExit('was run')")

    with pytest.raises(InvalidArgumentError, match="contains custom code"):
        export_folder(source, tmp_path / "out", tokenizer=False, engine="onnxruntime")


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    for other in ("gpt2", True):
        with pytest.raises(InvalidArgumentError, match="is no tokenizer or processor of transformers"):
            export_folder(language_model("llama", num_hidden_layers=1), tmp_path / "out", tokenizer=other)
    assert not list(tmp_path.iterdir())


def test_models_that_cannot_be_run_or_lack_settings_are_refused(tmp_path):
    with pytest.raises(InvalidArgumentError, match="weights on meta, and is run on the CPU"):
        export_folder(language_model("llama").to("meta"), tmp_path / "out", engine="onnxruntime")

    model = language_model("llama")
    model.generation_config = None
    with pytest.raises(InvalidArgumentError, match="LlamaForCausalLM has no generation_config"):
        export_folder(model, tmp_path / "out", engine="onnxruntime")
    assert not list(tmp_path.iterdir())


def test_settings_that_contradict_themselves_are_refused(tmp_path):
    model = language_model("llama", num_hidden_layers=1)
    model.generation_config.do_sample, model.generation_config.temperature = False, 0.3

    with pytest.raises(InvalidArgumentError, match="generation_config cannot be saved"):
        export_folder(model, tmp_path / "out", engine="onnxruntime", verify=False)
    assert not list(tmp_path.iterdir())


def test_the_number_of_tokens_is_that_of_the_logits(tmp_path):
    model = language_model("llama", num_hidden_layers=1)
    model.config.vocab_size = 1000

    folder = export_folder(model, tmp_path / "out", engine="onnxruntime")

    assert folder.compared
    assert json.loads((folder.path / "genai_config.json").read_text())["model"]["vocab_size"] == 64
