"""The default tests of a package again and again, each round in another order and with other hashes.

`python -m tools.stability onnxops-core --rounds 10` runs what is left of ten rounds; `--seed 7` runs the round of one
seed again. Each round is noted in `build/stability` when it ends, so that a run that was cut off goes on where it was,
as long as the source is the same. The table at the end tells of every package that has been run.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

RESULTS = Path("build", "stability")
NO_RESULT = "(no result: the run broke off)"
_SEEDS = 2**32


@dataclasses.dataclass
class Round:
    """One run of all tests, in the order and with the hashes of `seed`."""

    seed: int
    tests: int
    failures: list[str]
    seconds: float


@dataclasses.dataclass
class Record:
    """The rounds of a package whose source has the fingerprint `source`."""

    source: str
    rounds: list[Round] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, file: Path) -> Record | None:
        """Return the record in a file; None if there is none."""
        if not file.exists():
            return None
        found = json.loads(file.read_text(encoding="utf-8"))
        return cls(found["source"], [Round(**each) for each in found["rounds"]])

    def write(self, file: Path) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_suffix(".part")
        beside.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")
        beside.replace(file)


def fingerprint(root: Path) -> str:
    """Return what identifies this state of the source: the commit, and what has been changed since."""
    commands = (["rev-parse", "HEAD"], ["diff", "HEAD"], ["status", "--porcelain"])
    printed = [
        subprocess.run(["git", *command], cwd=root, capture_output=True, check=True).stdout for command in commands
    ]
    return hashlib.sha256(b"".join(printed)).hexdigest()[:16]


def read_report(file: Path) -> tuple[int, list[str]]:
    """Return the number of tests in a JUnit report, and the names of those that failed."""
    if not file.exists():
        return 0, [NO_RESULT]
    cases = list(ET.parse(file).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    return len(cases), sorted(f"{case.get('classname')}::{case.get('name')}" for case in failed)


def run_round(package: str, seed: int) -> Round:
    """Run the default tests of a package in the order of a seed."""
    report = RESULTS / f"{package}.xml"
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", f"packages/{package}/tests", "-m", "not wide"]
    command += ["-n", "auto", "--dist", "load", "--random-order-bucket=global", f"--random-order-seed={seed}"]
    began = time.monotonic()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": str(seed)}
    done = subprocess.run([*command, "-q", f"--junitxml={report}"], check=False, env=environment)
    tests, failures = read_report(report)
    if done.returncode and not failures:
        failures = [NO_RESULT]
    return Round(seed, tests, failures, round(time.monotonic() - began, 1))


def complete(
    file: Path, source: str, rounds: int, seeds: Sequence[int], run: Callable[[int], Round], say: Callable[[str], None]
) -> Record:
    """Run what a record lacks, and note each round as it ends.

    Args:
        file: Where the record is kept; one of another source is begun anew.
        source: Fingerprint of the source.
        rounds: How many rounds the record is to have.
        seeds: The seeds to run instead, whether the record has them or not.
        run: Runs the round of a seed.
        say: Told of each round before it begins.
    """
    record = Record.read(file)
    if record is None or record.source != source:
        record = Record(source)
    missing = random.sample(range(_SEEDS), max(rounds - len(record.rounds), 0))
    for seed in seeds or missing:
        say(f"round {len(record.rounds) + 1}: --seed {seed} runs it again")
        record.rounds = [*(each for each in record.rounds if each.seed != seed), run(seed)]
        record.write(file)
    return record


def table(records: dict[str, Record]) -> str:
    """Return the rounds of each package in one line, and below them the tests that failed, each with the seeds."""
    lines = [f"{'package':16} {'rounds':>6} {'failed':>6} {'tests':>7} {'seconds':>8}"]
    for name, record in sorted(records.items()):
        failed = sum(bool(each.failures) for each in record.rounds)
        tests = max((each.tests for each in record.rounds), default=0)
        seconds = sum(each.seconds for each in record.rounds)
        lines.append(f"{name:16} {len(record.rounds):6} {failed:6} {tests:7} {seconds:8.0f}")
    for name, record in sorted(records.items()):
        found: dict[str, list[int]] = {}
        for each in record.rounds:
            for failure in each.failures:
                found.setdefault(failure, []).append(each.seed)
        lines += [f"{name}: {test} failed with --seed {', '.join(map(str, seeds))}" for test, seeds in found.items()]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rounds of a package; return 1 if a test failed in one of them."""
    parser = argparse.ArgumentParser(prog="python -m tools.stability", description=__doc__)
    parser.add_argument("package")
    parser.add_argument("--rounds", type=int, default=10, help="how many rounds there are to be (10)")
    parser.add_argument("--seed", type=int, action="append", default=[], help="run the round of this seed again")
    options = parser.parse_args(arguments)
    record = complete(
        RESULTS / f"{options.package}.json",
        fingerprint(Path.cwd()),
        options.rounds,
        options.seed,
        lambda seed: run_round(options.package, seed),
        lambda text: print(text, flush=True),
    )
    found = {file.stem: Record.read(file) for file in sorted(RESULTS.glob("*.json"))}
    print(table({name: each for name, each in found.items() if each is not None and each.source == record.source}))
    ran = [each for each in record.rounds if not options.seed or each.seed in options.seed]
    return int(any(each.failures for each in ran))


if __name__ == "__main__":
    sys.exit(main())
