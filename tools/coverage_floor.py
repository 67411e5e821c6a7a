"""Coverage per package may rise and must not fall.

`python -m tools.coverage_floor REPORTS` compares the `<distribution>.json` reports in a folder with the floors in
`coverage-floor.toml`; with `--raise` it writes the measured values there where they are higher.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

FLOORS = "coverage-floor.toml"
# Lines that only some machines reach make two runs differ by a little.
SLACK = 0.5


def measured(reports: Path) -> dict[str, float]:
    """Return the covered percentage of each distribution that has a report."""
    return {
        path.stem: float(json.loads(path.read_text(encoding="utf-8"))["totals"]["percent_covered"])
        for path in sorted(reports.glob("*.json"))
    }


def fallen(percentages: dict[str, float], floors: dict[str, float]) -> list[str]:
    """One line for each distribution that is below its floor, has none, or has one and was not measured."""
    lines = [f"{name} was not measured" for name in sorted(floors.keys() - percentages.keys())]
    for name, percent in percentages.items():
        floor = floors.get(name)
        if floor is None:
            lines.append(f"{name} has no floor; `nox -s coverage -- --raise` records one")
        elif percent < floor - SLACK:
            lines.append(f"{name} fell from {floor:.1f} % to {percent:.1f} %")
    return lines


def raised(percentages: dict[str, float], floors: dict[str, float]) -> dict[str, float]:
    """Return the floors with those moved up that the measurement is above; to a tenth of a percent, rounded down."""
    rounded = {name: math.floor(percent * 10) / 10 for name, percent in percentages.items()}
    names = sorted(rounded.keys() | floors.keys())
    return {name: max(rounded.get(name, 0.0), floors.get(name, 0.0)) for name in names}


def main(arguments: Sequence[str] | None = None, root: Path | None = None) -> int:
    """Print the table and return 1 when a package fell below its floor."""
    parser = argparse.ArgumentParser(prog="python -m tools.coverage_floor", description=__doc__)
    parser.add_argument("reports", type=Path)
    parser.add_argument("--raise", action="store_true", dest="lift")
    options = parser.parse_args(arguments)
    file = (root or Path.cwd()) / FLOORS
    floors = {name: float(value) for name, value in tomllib.loads(file.read_text(encoding="utf-8")).items()}
    percentages = measured(options.reports)
    for name, percent in percentages.items():
        print(f"{name:16} {percent:5.1f} %   floor {floors.get(name, math.nan):5.1f} %")
    if options.lift:
        lines = [f"{name} = {value}" for name, value in raised(percentages, floors).items()]
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return 0
    faults = fallen(percentages, floors)
    print("\n".join(faults))
    return 1 if faults or not percentages else 0


if __name__ == "__main__":
    sys.exit(main())
