#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden files that are missing: `./dev run tests/golden/make.py [--force] [NAME…]`.

An existing file is not changed, unless `--force` is given. Use `--force` only if results are meant
to change, and state the reason with the change.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

PYTHON = Path(__file__).parents[1] / "python"
sys.path[:0] = [str(PYTHON / name) for name in ("oracles", "cases", "ranks", "package")]

import golden  # noqa: E402
import golden_files  # noqa: E402
import golden_stored  # noqa: E402
import golden_training  # noqa: E402


def write_json(name: str, value: dict[str, object]) -> None:
    (golden.FOLDER / f"{name}.json").write_text(golden.dumped(value))


def writers() -> dict[str, Callable[[], None]]:
    """Returns a function for each golden file that writes it, by the file's name."""
    found: dict[str, Callable[[], None]] = {
        "specs.pickle": golden_stored.write_pickle,
        "checkpoint.pt": golden_stored.write_checkpoint,
        "names.json": lambda: write_json("names", golden_stored.names()),
        **golden_files.writers(),
        **golden_training.writers(),
    }
    if not (golden.FOLDER / "names.json").exists():
        found["names.json"]()  # which the tests read as they are imported
    import test_golden

    for name, cases in test_golden.TEXTS.items():
        found[f"{name}.json"] = lambda name=name, cases=cases: write_json(name, dict(cases()))
    results = dict(reversed(test_golden.RUNS))
    found["results.json"] = lambda: write_json(
        "results", {name: test_golden.checksum(name, results[name]) for name in sorted(results)}
    )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="files; default: all that are missing")
    parser.add_argument("--force", action="store_true", help="write files that are there, too")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    known = writers()
    for name in options.names or known:
        if name not in known:
            parser.error(f"no golden file {name!r}; there are {', '.join(known)}")
        there = (golden.FOLDER / name).exists()
        if there and not options.force:
            print(f"{name}: there; --force writes it anew")
            continue
        known[name]()
        print(f"{name}: written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
