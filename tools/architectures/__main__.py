"""Judge the model classes of installed libraries, each in a process of its own, and write the page about them.

    python -m tools.architectures [--library transformers timm torchvision] [--only NAME] [--minutes 30] [--beside 8]
        [--imported]

What is known already is not run again, but for the verdicts that `--again` names: the results, one JSON line for each
class, are kept beside this file. Classes come in an order of chance that is always the same, so that a part of them is
a fair sample. Several runs may go on at once. With `--imported`, what was exported is imported and compared with its
class, too, and a class that is right is known only if that was done.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import hashlib
import json
import logging
import multiprocessing
import resource
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import onnx_fx_export
from tools.architectures.judge import Verdict, judged
from tools.architectures.page import write_page
from tools.architectures.small import class_names

RESULTS = Path(__file__).parent / "results.jsonl"


def _chance(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _work(library: str, name: str, beside: bool, imported: bool, limit: int, channel: Any) -> None:
    logging.disable(logging.CRITICAL)
    # Time of the processor: what else runs on the machine decides nothing.
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    channel.send(dataclasses.asdict(judged(library, name, timed=beside, beside=beside, imported=imported)))


def _in_a_process(library: str, name: str, beside: bool, imported: bool, limit: int) -> dict[str, Any]:
    """Judge a class in a process that may crash, or not end."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_work, args=(library, name, beside, imported, limit, theirs))
    process.start()
    theirs.close()
    failure = Verdict(library, name, "no end", f"not in {limit} s")
    try:
        # One that waits, and does not compute, is ended as well.
        if ours.poll(10 * limit):
            return dict(ours.recv())
    except EOFError:
        process.join()
        if process.exitcode not in (-signal.SIGXCPU, -signal.SIGKILL):
            failure.verdict, failure.reason = "refused", "the process crashed"
    finally:
        process.kill()
        process.join()
    return dataclasses.asdict(failure)


def known(path: Path = RESULTS) -> list[dict[str, Any]]:
    """Return the results that are kept."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def keep(row: dict[str, Any], path: Path = RESULTS) -> None:
    """Add a result to those that are kept, in place of an older one of the same class."""
    with (path.parent / "__init__.py").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = {(each["library"], each["name"]): each for each in [*known(path), row]}
        path.write_text("".join(f"{json.dumps(rows[key])}\n" for key in sorted(rows)))


def _is_known(row: dict[str, Any] | None, again: Sequence[str], imported: bool) -> bool:
    """Tell whether nothing new is to be learnt of a class."""
    if row is None or row["verdict"] in again:
        return False
    return not imported or row["verdict"] not in ("right", "static") or bool(row.get("imported"))


def _warm_up(libraries: Sequence[str]) -> None:
    """Load what is loaded on first use: the processes of the classes find it loaded, and their times are without it."""
    batch = {0: "batch"}
    onnx_fx_export.export(torch.nn.Linear(2, 2), (torch.ones(2, 2),), dynamic_shapes=(batch,))
    if "transformers" in libraries:
        from transformers import LlamaConfig, LlamaModel

        config = LlamaConfig(
            hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8
        )
        model: torch.nn.Module = LlamaModel(config)
        onnx_fx_export.export(model.eval(), (torch.ones(2, 3, dtype=torch.int64),), dynamic_shapes={"input_ids": batch})


def main() -> None:
    """Judge what is not known yet, until the time is over."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", nargs="+", default=["transformers", "timm", "torchvision"])
    parser.add_argument("--only", nargs="+", help="classes to judge, again if they are known")
    parser.add_argument(
        "--again", nargs="*", default=["no end"], help="verdicts that are no reason to leave out a class"
    )
    parser.add_argument("--minutes", type=float, default=600, help="when to stop")
    parser.add_argument("--limit", type=int, default=120, help="seconds of the processor for one class")
    help_beside = "time torch.export alone, and judge torch.onnx, for one class in so many"
    parser.add_argument("--beside", type=int, default=8, help=help_beside)
    parser.add_argument("--imported", action="store_true", help="import what was exported, and compare that, too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _warm_up(options.library)
    end = time.monotonic() + 60 * options.minutes
    for library in options.library:
        names = options.only or sorted(class_names(library), key=_chance)
        for index, name in enumerate(names):
            if time.monotonic() > end:
                break
            before = {row["name"]: row for row in known() if row["library"] == library}.get(name)
            if not options.only and _is_known(before, options.again, options.imported):
                continue
            beside = bool(options.beside) and index % options.beside == 0
            row = _in_a_process(library, name, beside, options.imported, options.limit)
            keep(row)
            told = [row["verdict"], row["reason"][:90], f"(imported: {row['imported']})" if row["imported"] else ""]
            print(f"{index + 1}/{len(names)} {name}: {' '.join(filter(None, told))}", flush=True)
    write_page(known())


if __name__ == "__main__":
    main()
