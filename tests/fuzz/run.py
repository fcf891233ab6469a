# SPDX-License-Identifier: Apache-2.0
"""Runs the fuzzers of decoders and parsers, and stores inputs of decoders.

A file of corpus/ has the inputs of one codec: the codec's text in the first line, then one input in
hex on each line. A file of texts/ has texts of one grammar, one on each line. PROGRAMS is the
folder of the fuzzers' programs.

    run.py PROGRAMS check            checks that every codec has a file with its valid inputs
    run.py PROGRAMS fuzz NAME RUNS   runs RUNS inputs, beginning with the inputs in corpus/NAME.txt;
                                     if NAME is texts/GRAMMAR, with the texts of that file
    run.py PROGRAMS grow RUNS        writes the files of corpus/ again: the valid inputs, the
                                     stored inputs and the inputs that RUNS runs add, except
                                     inputs that reach no further code
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
CORPUS = HERE / "corpus"
LONGEST = 1024  # bytes of an input
PRELOADED = {"LD_PRELOAD": path} if (path := os.environ.get("CPD_FUZZ_PRELOAD")) else {}
"""The runtime of AddressSanitizer, for fuzzers that load a sanitized libcpd."""
OPTIONS = [
    f"-max_len={LONGEST}",
    "-seed=1",
    "-malloc_limit_mb=64",
    "-rss_limit_mb=1024",
    "-timeout=10",
]


def file_of(text: str) -> Path:
    return CORPUS / (re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_") + ".txt")


def read(file: Path) -> tuple[str, list[str]]:
    text, *inputs = file.read_text().splitlines()
    return text, inputs


def seeds(programs: Path) -> dict[str, list[str]]:
    """Returns the valid inputs of every codec."""
    run = subprocess.run(
        [programs / "fuzz_seeds"],
        env={**os.environ, **PRELOADED},
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, list[str]] = {}
    for line in run.stdout.splitlines():
        text, data = line.split("\t")
        found.setdefault(text, []).append(data)
    return found


def check(programs: Path) -> None:
    for text, valid in seeds(programs).items():
        file = file_of(text)
        if not file.exists() or read(file)[0] != text:
            sys.exit(f"corpus/{file.name} with the inputs of '{text}' is missing: run.py … grow")
        if not {data for data in valid if len(data) <= 2 * LONGEST} & set(read(file)[1]):
            sys.exit(f"corpus/{file.name}: '{text}' has other bytes now: run.py … grow")


def run_fuzzer(programs: Path, text: str, *arguments: str | Path) -> None:
    run_program(programs / "fuzz_decode", {"CPD_FUZZ_CODEC": text}, *arguments)


def run_program(program: Path, variables: dict[str, str], *arguments: str | Path) -> None:
    environment = {**os.environ, **PRELOADED, "CPD_NUM_THREADS": "1", **variables}
    done = subprocess.run(
        [program, *OPTIONS, *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(f"{variables}:\n{done.stderr[-8000:]}")
    print("\n".join(done.stderr.splitlines()[-2:]))


def write_inputs(folder: Path, inputs: list[str]) -> None:
    folder.mkdir(exist_ok=True)
    for data in inputs:
        raw = bytes.fromhex(data)
        (folder / hashlib.sha256(raw).hexdigest()[:16]).write_bytes(raw)


def fuzz(programs: Path, name: str, runs: int) -> None:
    text, inputs = read(CORPUS / f"{name}.txt")
    with tempfile.TemporaryDirectory() as scratch:
        kept = Path(scratch, "kept")
        write_inputs(kept, inputs)
        run_fuzzer(programs, text, f"-runs={runs}", f"-artifact_prefix={programs}/", kept)


def fuzz_texts(programs: Path, name: str, runs: int) -> None:
    """Runs the fuzzer of a grammar. Its dictionary has the words of all stored texts."""
    texts = (HERE / f"{name}.txt").read_text().splitlines()
    words = sorted({word for text in texts for word in re.findall(r"[A-Za-z_]+|\d+|\W", text)})
    with tempfile.TemporaryDirectory() as scratch:
        kept, dictionary = Path(scratch, "kept"), Path(scratch, "words")
        write_inputs(kept, [text.encode().hex() for text in texts])
        dictionary.write_text("".join(f'"{re.escape(word)}"\n' for word in words if word.isalnum()))
        run_program(
            programs / "fuzz_text",
            {"CPD_FUZZ_GRAMMAR": Path(name).name},
            f"-runs={runs}",
            f"-dict={dictionary}",
            f"-artifact_prefix={programs}/",
            kept,
        )


def grow(programs: Path, runs: int) -> None:
    for text, valid in seeds(programs).items():
        file = file_of(text)
        kept = read(file)[1] if file.exists() else []
        with tempfile.TemporaryDirectory() as scratch:
            found, least = Path(scratch, "found"), Path(scratch, "least")
            least.mkdir()
            write_inputs(found, valid + kept)
            run_fuzzer(programs, text, f"-runs={runs}", f"-artifact_prefix={programs}/", found)
            run_fuzzer(programs, text, "-merge=1", least, found)
            grown = {path.read_bytes().hex() for path in least.iterdir()}
        grown.update(data for data in valid if len(data) <= 2 * LONGEST)
        file.write_text(
            "\n".join([text, *sorted(grown, key=lambda data: (len(data), data))]) + "\n"
        )
        print(f"{file.name}: {len(grown)} inputs")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("programs", type=Path)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    one = commands.add_parser("fuzz")
    one.add_argument("name")
    one.add_argument("runs", type=int)
    commands.add_parser("grow").add_argument("runs", type=int)
    given = parser.parse_args()
    if given.command == "check":
        check(given.programs)
    elif given.command == "fuzz":
        one_run = fuzz_texts if given.name.startswith("texts/") else fuzz
        one_run(given.programs, given.name, given.runs)
    else:
        grow(given.programs, given.runs)


if __name__ == "__main__":
    main()
