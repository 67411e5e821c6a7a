"""The first export of a process beside the first `torch.export.export`: what a user waits for.

    python benchmarks/first_export.py [--json FILE]

Every export happens in a new process with byte code at hand, in turn; what counts is the processor time, from behind
`import torch` on, of the least of them. The model has two layers.
"""

from __future__ import annotations

import os
import subprocess
import sys

from figures import Figure, command

ROUNDS = 5
MODEL = "model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(2, 4)"
CALLS = {
    "torch.export": "torch.export.export(model, (x,))",
    "onnx_fx_export": "import onnx_fx_export; onnx_fx_export.export(model, (x,))",
    "onnx_ts_legacy": "import onnx_ts_legacy; onnx_ts_legacy.export(model, (x,))",
    "torch.onnx": "torch.onnx.export(model, (x,), verbose=False, dynamo=True)",
}


def seconds(call: str) -> float:
    """Return the processor seconds of a call in a process that has torch already."""
    code = f"import time, torch; {MODEL}; start = time.process_time(); {call}; print(time.process_time() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
    return float(done.stdout.splitlines()[-1])


def main() -> None:
    options = command(__doc__).parse_args()
    least = dict.fromkeys(CALLS, float("inf"))
    for _ in range(ROUNDS):
        for name, call in CALLS.items():
            least[name] = min(least[name], seconds(call))
    Figure(
        title="The first export of a process",
        caption="Processor seconds of the first export of a model of two layers, imports included, and their ratio to "
        "those of `torch.export.export`; less is better.",
        columns={"name": "exporter", "seconds": "s", "ratio": "over torch.export"},
        rows=[{"name": name, "seconds": least[name], "ratio": least[name] / least["torch.export"]} for name in CALLS],
    ).finish(options.json)


if __name__ == "__main__":
    main()
