"""The Triton kernels compute what the references do, as far as Triton's interpreter can show."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="the kernels need Triton, which torch installs for GPUs alone")


def test_kernels_agree_with_the_references_in_the_interpreter():
    # Triton decides when it is imported whether it interprets, so the cases need a process of their own.
    cases = Path(__file__).parent / "core_triton_cases.py"

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--import-mode=importlib", str(cases)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
