"""The Triton kernels without a GPU: in Triton's interpreter, and in its compiler for a Hopper GPU.

`nox -s triton` installs Triton for them; with a CPU build of torch it is absent otherwise.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton, which torch installs for GPUs alone")


def _run(cases, environment, *options):
    # Triton decides when it is imported whether it interprets, so the cases need a process of their own.
    path = Path(__file__).parent / cases
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-p",
            "no:cacheprovider",
            "--import-mode=importlib",
            *options,
            str(path),
        ],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout


def test_kernels_agree_with_the_references_in_the_interpreter():
    _run("core_triton_cases.py", {"TRITON_INTERPRET": "1"})


@pytest.mark.parametrize("wide", [False, pytest.param(True, marks=pytest.mark.wide)])
def test_kernels_compile_for_a_gpu(tmp_path, wide):
    # A cache would hide what the compiler says to kernels that were changed elsewhere.
    _run("core_triton_compile_cases.py", {"TRITON_CACHE_DIR": str(tmp_path)}, "-m", "wide" if wide else "not wide")
