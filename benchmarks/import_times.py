"""What importing each package adds to importing torch, beside `torch.onnx` and what it needs to export.

    python benchmarks/import_times.py [--json FILE]

Every import happens in a new process with byte code at hand, in turn; what counts is the processor time of the least
of them. The ratio is that to `import torch` alone.
"""

from __future__ import annotations

import os
import subprocess
import sys

from figures import Figure, command

ROUNDS = 3
TORCH = "torch"
MODULES = {
    "torch": "the base of all others",
    "onnxops_core": "",
    "onnxops_decomp": "",
    "onnx_fx_export": "",
    "onnx_ts_legacy": "",
    "onnx_verify": "needs no torch",
    "torch.onnx": "loads its exporter when it is used",
    "torch.onnx.ops": "",
    "onnxscript": "what torch.onnx.export(dynamo=True) loads first",
}


def seconds(module: str) -> float:
    """Return the processor seconds that importing a module takes in a process that has torch already."""
    before = "" if module == TORCH else f"import {TORCH}; "
    code = f"import time; {before}start = time.process_time(); import {module}; print(time.process_time() - start)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environment)
    return float(done.stdout)


def main() -> None:
    options = command(__doc__).parse_args()
    least = dict.fromkeys(MODULES, float("inf"))
    for _ in range(ROUNDS):
        for module in MODULES:
            least[module] = min(least[module], seconds(module))
    Figure(
        title="Import times",
        caption="Processor seconds that an import adds to `import torch`, and their ratio to it; least is best.",
        columns={"module": "module", "seconds": "s", "ratio": "over torch", "note": "note"},
        rows=[
            {"module": module, "seconds": least[module], "ratio": least[module] / least[TORCH], "note": note}
            for module, note in MODULES.items()
        ],
    ).finish(options.json)


if __name__ == "__main__":
    main()
