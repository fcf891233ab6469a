# SPDX-License-Identifier: Apache-2.0
"""Tests claims of the README and the guides that no other test covers."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

import cpd
import forked
import scaled_cases
from cpd import _core

ROOT = Path(__file__).parents[3]
README, GUIDE, MODELS, HARDWARE, BITS = (
    (ROOT / name).read_text()
    for name in (
        *("README.md", "python/GUIDE.md", "python/MODELS.md", "python/HARDWARE.md"),
        "benchmarks/BITS.md",
    )
)


def command(*words: str) -> str:
    """Returns the output of a `cpd` command."""
    done = forked.run(["-m", "cpd", *words], capture_output=True, text=True, check=True)
    return done.stdout


def rows(page: str, first: str) -> list[list[str]]:
    """Returns the cells of a table's rows; the table's first line begins with `first`."""
    lines = page[page.index(first) :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_version_lists_the_parts() -> None:
    said = command("--version")
    assert said.startswith(f"cpd {cpd.__version__} (built with")
    assert re.findall(r"[A-Z]+", said) == _core.PARTS.split()


def test_the_number_of_matrix_units() -> None:
    assert f"{len(cpd.Accumulator.named())} matrix units by name" in README


def test_the_number_of_architectures() -> None:
    pytest.importorskip("torch")
    import models_at_hand

    count = len(models_at_hand.TRANSFORMERS) + len(models_at_hand.TIMM)
    assert f"Of {count} architectures of transformers and timm" in MODELS


def test_the_number_of_the_papers_rows() -> None:
    from cpd_lab.papers.catalogue import papers

    count = sum(len(paper.rows) for paper in papers())
    assert f"a page of all {count} rows" in (ROOT / "python/docs/papers.md").read_text()


def test_the_number_of_bugs_in_rtl() -> None:
    page = (ROOT / "tests/rtl/README.md").read_text()
    bugs = tomllib.loads((ROOT / "tests/rtl/mutants.toml").read_text())
    assert f"and {len(bugs)} bugs that the vectors must find" in " ".join(page.split())
    assert {f"MUT_{row[0].strip('`')}" for row in rows(page, "| bug |")} == set(bugs)


def test_the_table_of_recipes_names_each() -> None:
    cells = [row[0] for row in rows(MODELS, "| `cpd.Recipe(…)` |")]
    assert {name for cell in cells for name in re.findall(r"`([\w-]+)`", cell)} == {
        *cpd.Recipe.named()
    }


def test_the_guide_lists_the_commands() -> None:
    (listed,) = re.findall(r"`cpd --help` lists the commands: (.*?)\.\n", GUIDE, re.DOTALL)
    printed = re.findall(r"^    (\w+)(?: {2}|$)", command("--help"), re.M)
    assert re.findall(r"`(\w+)`", listed) == printed


NAMES = {
    "torchao, main: MX": "torchao_main",
    "torchao 0.18: MX": "torchao_release",
    "TransformerEngine: MXFP8": "te_mxfp8",
    '… NVFP4, also with "4/6" scales, and after its Hadamard transform': "te_nvfp4",
    "… float8 by tensor": "te_current",
    "… float8 by blocks": "te_block",
    "microxcaling": "microxcaling",
    "microxcaling, C++": "microxcaling_cpp",
    "torchao: NVFP4": "torchao_nvfp4",
    "torchao: float8 by tensor, row, column": "torchao_float8",
    "torchao: float8 by blocks": "torchao_blockwise",
    "DeepGEMM": "deepgemm",
}
"""Maps each row of the table of golden vectors in BITS.md to the library that made the row's
vectors."""


def test_golden_vectors() -> None:
    found = {
        NAMES[name]: tuple(int(cell.replace(",", "")) for cell in cells[:2])
        for name, *cells in rows(BITS, "| vectors of |")
    }
    assert found == scaled_cases.COUNTS
    compared, differ = (sum(column) for column in zip(*found.values(), strict=True))
    assert f"Of {compared / 1e6:.1f} million values" in " ".join(GUIDE.split())
    assert f"CPD's equal all but {100 * differ / compared:.0f} %]" in " ".join(GUIDE.split())


@pytest.mark.parametrize(
    ("accumulator", "minus"),
    [
        *((text, True) for text in ("e4m3", "e4m3 kahan", "e4m3 pairwise", "e4m3 fma")),
        *((text, False) for text in ("e6m9 chunked chunk=2", "h100-fp16", "v100", "int32")),
    ],
)
def test_signs_of_zero_sums(accumulator: str, minus: bool) -> None:
    """A sum of zeros is -0 if c and all terms are -0.

    Chunked sums, matrix units and integer accumulators give +0 instead.
    """
    ones = np.ones((4, 1), np.float32)
    for c in (-0.0, 0.0):
        for products in ([-0.0] * 4, [-0.0, -0.0, -0.0, 0.0]):
            a, addend = np.float32([products]), np.float32([[c]])
            result = cpd.gemm(a, ones, accumulator, c=addend)
            assert result.item() == 0
            all_minus = np.signbit(c) and np.signbit(products).all()
            assert np.signbit(result).item() == (minus and all_minus)


def test_options_of_clocked_modules() -> None:
    """The options that the hardware guide lists for modules with `--clock` are options of
    `cpd vectors`. The guide and `cpd vectors --help` state the same default for the last one.
    """
    table = rows(HARDWARE, "| option of a module with `--clock` |")
    said = " ".join(command("vectors", "--help").split())
    options = re.findall(r"`(--[\w-]+)", " ".join(cells[0] for cells in table))
    assert len(options) >= 10
    for option in options:
        assert f" {option} " in said
    assert "default 25 with" in table[-1][1]
    assert "default: 25 with --ready-in or --ready-out" in said


def test_the_report_names_layers_that_nobody_called() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    report = cpd.convert(model, "mxfp8", coverage=0)
    model[0](torch.randn(4, 8)).sum().backward()
    assert "converted and never called: 1: 1\n" in f"{report.coverage()}\n"


PAGES_OF_CONTRIBUTORS = ("CONTRIBUTING.md", "tests/README.md", "benchmarks/README.md")


def test_the_commands_of_contributors() -> None:
    """Each `./dev` command, option and preset that the contributors' pages name exists."""
    script = "".join(
        file.read_text() for file in (ROOT / "dev", *sorted((ROOT / ".dev").glob("*.sh")))
    )
    commands = set(
        re.findall(r"^  (\w+) ", script.partition("usage:")[2].partition("TEXT")[0], re.M)
    )
    presets = re.findall(r'"name": "(\w+)"', (ROOT / "CMakePresets.json").read_text())
    for page in PAGES_OF_CONTRIBUTORS:
        text = (ROOT / page).read_text()
        named = re.findall(r"`(?:[A-Z_]+=\S+ )*\./dev ([a-z]+)([^`]*)`", text)
        assert named
        for command, words in named:
            assert command in commands, f"{page} names ./dev {command}"
            for option in re.findall(r"--[a-z]+", words) if command == "test" else ():
                assert option in script, f"{page} names ./dev {command} {option}"
        for chosen in re.findall(r"`cmake --preset ([^`]+)`|\(preset `(\w+)`\)", text):
            assert set(re.findall(r"\w+", "".join(chosen))) <= {*presets}


def test_the_files_of_the_tests_page() -> None:
    """Each file that tests/README.md names is in the tree, by its path or its name."""
    text = (ROOT / "tests/README.md").read_text()
    known = [
        path.relative_to(ROOT).as_posix()
        for top in ("tests", "cpd")
        for path in (ROOT / top).rglob("*.*")
    ]
    named = re.findall(r"`((?:\w+/)*\w+\.(?:py|cpp|h|toml))`", text)
    assert len(named) > 40
    named = [name for name in named if not name.endswith("PAGE.toml")]
    assert [n for n in named if not any(f"/{k}".endswith(f"/{n}") for k in known)] == []
