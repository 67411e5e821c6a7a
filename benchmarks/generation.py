"""Folders for ONNX Runtime GenAI beside those that GenAI's own model builder writes by hand, in one run.

    python benchmarks/generation.py [--only llama qwen3] [--nodes] [--json FILE]

Both folders come from one checkpoint of random weights: 8 layers of width 512, 8 heads that share 4 of keys and values.
GenAI runs both on one thread, the two taking turns, token by token: a prompt of 512 tokens, then 32 tokens more. Each
round loads both folders anew: where their weights come to lie in memory makes one and the same folder up to a tenth
faster or slower than itself, which no number of runs of one that is loaded tells. All figures are medians, and the
ratios those of pairs that were measured one after the other, so that what else the machine does counts on both sides.
Where precision is int4, the builder lets the product round its operand to eight bits as well, which is faster; here the
product is exact, and so it is asked of the builder, too (``accuracy_level=1``). So are logits of the last position
alone (``prune_lm_head=true``), which is what folders have here. With ``--nodes`` nothing is timed: the nodes of both
are counted for every architecture that the builder knows and that a small random configuration makes; where one of them
fails, its count is missing. The builder lets layers with sliding windows keep these alone. ``--windowed-caches`` does
so here, too; without it the builder is asked for caches of whole texts (``windowed_kv_cache=false``).
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from figures import Cell, Figure, command, quiet

PROMPT, NEW = 512, 32
_SIZES = {
    "vocab_size": 4096, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "max_position_embeddings": 2048,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "mistral": ("MistralConfig", {"sliding_window": None}),
    "qwen3": ("Qwen3Config", {}),
    "phi3": ("Phi3Config", {"original_max_position_embeddings": 2048}),
    "granite": ("GraniteConfig", {}),
}
PRECISIONS = ("fp32", "int4")
_MIXED = {"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 4}
# Those that the builder knows, too, but that are not timed.
COUNTED: dict[str, tuple[str, dict[str, Any]]] = {
    **MODELS,
    "olmo2": ("Olmo2Config", {}),
    "qwen2": ("Qwen2Config", {}),
    "phi": ("PhiConfig", {}),
    "gemma": ("GemmaConfig", {}),
    "gemma2": ("Gemma2Config", _MIXED),
    "gemma3": ("Gemma3TextConfig", _MIXED),
    "olmo": ("OlmoConfig", {}),
    "smollm3": ("SmolLM3Config", {}),
    "nemotron": ("NemotronConfig", {}),
    "ernie": ("Ernie4_5Config", {}),
    "hunyuan": ("HunYuanDenseV1Config", {}),
    "gpt_oss": ("GptOssConfig", {**_MIXED, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"] * 4}),
    "lfm2_moe": ("Lfm2MoeConfig", {"layer_types": ["conv", "full_attention"] * 4, "num_experts": 4,
                                   "num_experts_per_tok": 2, "moe_intermediate_size": 256, "num_dense_layers": 2}),
    "granite_hybrid": ("GraniteMoeHybridConfig", {"layer_types": ["attention"] * 8, "num_local_experts": 0,
                                                  "shared_intermediate_size": 1536}),
}  # fmt: skip


def checkpoint(name: str, folder: Path) -> None:
    """Write a model with random weights and a tokenizer, both of which the builder wants."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers

    kind, settings = COUNTED[name]
    torch.manual_seed(0)
    config = getattr(transformers, kind)(**{**_SIZES, **settings})
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for weight in model.parameters():
        if weight.dim() == 1:  # those that are alike would be one weight
            weight.data.normal_(1, 0.1)
    model.save_pretrained(folder)
    tokenizer = Tokenizer(models.BPE({"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(folder)


def ours(source: Path, out: Path, precision: str, windowed: bool = False) -> None:
    """Write a folder with this project."""
    from onnx_fx_export.generation import export_folder

    export_folder(source, out, precision, verify=False, windowed_caches=windowed)  # type: ignore[arg-type]


def theirs(source: Path, out: Path, precision: str, windowed: bool = False) -> None:
    """Write a folder with GenAI's model builder."""
    asked = ["prune_lm_head=true", f"windowed_kv_cache={str(windowed).lower()}"]
    options = ["--extra_options", *asked, *(["accuracy_level=1"] if precision == "int4" else [])]
    module = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    place = ["-i", str(source), "-o", str(out), "-c", str(out / "cache"), "-p", precision, "-e", "cpu"]
    subprocess.run([*module, *place, *options], check=True, capture_output=True)


class Engine:
    """GenAI with one folder, on one thread."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai as genai

        path = folder / "genai_config.json"
        config = json.loads(path.read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
        path.write_text(json.dumps(config))
        model = genai.Model(str(folder))
        options = genai.GeneratorParams(model)
        options.set_search_options(do_sample=False, max_length=PROMPT + NEW, min_length=PROMPT + NEW)
        self._generator = genai.Generator(model, options)

    def read(self) -> float:
        """Return the seconds from a prompt to the first token."""
        prompt = np.random.default_rng(0).integers(3, 4096, (1, PROMPT)).astype(np.int32)
        start = time.perf_counter()
        self._generator.append_tokens(prompt)
        self._generator.generate_next_token()
        return time.perf_counter() - start

    def step(self) -> float:
        """Return the seconds of the next token."""
        start = time.perf_counter()
        self._generator.generate_next_token()
        return time.perf_counter() - start

    @property
    def tokens(self) -> list[int]:
        """All tokens that were generated."""
        found: list[int] = self._generator.get_sequence(0)[PROMPT:].tolist()
        return found


@dataclasses.dataclass(frozen=True)
class Round:
    """The seconds of a prompt and of each step behind it, and the tokens."""

    prompt: float
    steps: tuple[float, ...]
    tokens: list[int]


def one_round(folders: Sequence[Path]) -> list[Round]:
    """Load folders and let them take turns, token by token."""
    engines = [Engine(folder) for folder in folders]
    prompts = [engine.read() for engine in engines]
    steps = zip(*([engine.step() for engine in engines] for _ in range(NEW - 1)), strict=True)
    return [Round(prompt, own, engine.tokens) for engine, prompt, own in zip(engines, prompts, steps, strict=True)]


def ratio(own: list[float], others: list[float]) -> float:
    """Return how much longer the others take, of what was measured one after the other: the middle of all pairs."""
    return statistics.median(other / one for one, other in zip(own, others, strict=True))


def copied(folder: Path) -> Path:
    """Return a copy of a folder.

    Which pages a system keeps a file in depends on who wrote it and how, and decides how fast weights are read that are
    mapped; copies are written alike.
    """
    return Path(shutil.copytree(folder, folder.with_name(f"{folder.name} copied")))


def measure(name: str, precision: str, rounds: int, windowed: bool) -> dict[str, Cell]:
    """Measure both folders of one model; what the builder cannot write has no figures."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "checkpoint"
        checkpoint(name, source)
        outs = [Path(folder) / out for out in ("ours", "theirs")]
        ours(source, outs[0], precision, windowed)
        try:
            theirs(source, outs[1], precision, windowed)
        except subprocess.CalledProcessError as error:
            print(f"{name}, {precision}: {error.stderr.decode().splitlines()[-1][:100]}", file=sys.stderr)
            return {**dict.fromkeys(COLUMNS), "model": name, "precision": precision}
        outs = [copied(out) for out in outs]
        counts = [len(onnx.load(out / "model.onnx", load_external_data=False).graph.node) for out in outs]
        # Each loads first as often as the other.
        runs = [one_round(outs) if number % 2 else one_round(outs[::-1])[::-1] for number in range(rounds)]
    prompts = [[run[side].prompt for run in runs] for side in (0, 1)]
    steps = [[step for run in runs for step in run[side].steps] for side in (0, 1)]
    return {
        "model": name,
        "precision": precision,
        "nodes": counts[0],
        "their_nodes": counts[1],
        "prompt": PROMPT / statistics.median(prompts[0]),
        "their_prompt": PROMPT / statistics.median(prompts[1]),
        "tokens": 1 / statistics.median(steps[0]),
        "their_tokens": 1 / statistics.median(steps[1]),
        "prompt_ratio": ratio(*prompts),
        "token_ratio": ratio(*steps),
        "equal": sum(a == b for a, b in zip(*(run.tokens for run in runs[0]), strict=True)) / NEW,
    }


def node_count(write: Callable[[Path, Path, str], None], source: Path, out: Path) -> int | None:
    """Return how many nodes a folder has, or None if it cannot be written."""
    try:
        write(source, out, "fp32")
    except Exception as error:  # whatever the one or the other raises
        said = error.stderr.decode() if isinstance(error, subprocess.CalledProcessError) else str(error)
        print(f"{out.name}: {type(error).__name__}: {(said.splitlines() or [''])[-1][:100]}", file=sys.stderr)
        return None
    return len(onnx.load(out / "model.onnx", load_external_data=False).graph.node)


def counted(name: str) -> dict[str, Cell]:
    """Count the nodes of both folders of one model."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "checkpoint"
        checkpoint(name, source)
        nodes, other = (node_count(write, source, Path(folder) / write.__name__) for write in (ours, theirs))
    ratio = nodes / other if nodes and other else None
    return {"model": name, "nodes": nodes, "their_nodes": other, "node_ratio": ratio}


NODE_COLUMNS = {"model": "model", "nodes": "nodes", "their_nodes": "builder's", "node_ratio": "ratio"}
COLUMNS = {
    "model": "model",
    "precision": "precision",
    "nodes": "nodes",
    "their_nodes": "builder's",
    "prompt": "prompt tokens/s",
    "their_prompt": "builder's",
    "tokens": "new tokens/s",
    "their_tokens": "builder's",
    "prompt_ratio": "prompt ratio",
    "token_ratio": "new tokens ratio",
    "equal": "equal tokens",
}


def main() -> None:
    """Measure and print the table."""
    parser = command(__doc__, COUNTED, list(MODELS))
    parser.add_argument("--rounds", type=int, default=9, help="how often both folders are loaded and run")
    parser.add_argument("--nodes", action="store_true", help="count the nodes of all architectures, and time nothing")
    parser.add_argument("--windowed-caches", action="store_true", help="let sliding windows be all that is kept")
    options = parser.parse_args()
    quiet()
    try:
        import onnxruntime_genai  # noqa: F401
    except ModuleNotFoundError:
        print("onnxruntime-genai is not installed: nothing measured.")
        return
    if options.nodes:
        names = COUNTED if options.only == list(MODELS) else options.only
        Figure(
            title="Nodes of folders for ONNX Runtime GenAI",
            caption="Nodes beside the folders of GenAI's model builder.",
            columns=NODE_COLUMNS,
            rows=[counted(name) for name in names],
        ).finish(options.json)
        return
    Figure(
        title="Folders for ONNX Runtime GenAI",
        caption="Nodes, and tokens per second on one thread, beside the folders of GenAI's model builder.",
        columns=COLUMNS,
        rows=[
            measure(name, precision, options.rounds, options.windowed_caches)
            for name in options.only
            for precision in PRECISIONS
        ],
    ).finish(options.json)


if __name__ == "__main__":
    main()
