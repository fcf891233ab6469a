# SPDX-License-Identifier: Apache-2.0
"""Tests statements of the README and of the pages in python/docs.

Commands must print the output shown, and pictures must come from the commands shown. Where a page
says that other libraries are wrong, CPD must be right. Replacements of old names must exist.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpd
import forked

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "python/docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
LONG = ("cost", "demo", "roundoff", "sweep")  # pictures that take some seconds or a training


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def shell(command: str, folder: Path, fails: bool = False) -> str:
    """Returns what a command prints in the folder, with this environment's `cpd`.

    If `fails`, the command must fail, and its error output is included.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    how: Any = {"cwd": folder, "env": {**os.environ, "PATH": path, "COLUMNS": "80"}}
    how |= {"capture_output": True, "text": True, "check": False}
    if re.match(r"cpd [^|>&;\n]*$", command):
        done = forked.run(["-m", *shlex.split(command)], **how)
    else:
        done = subprocess.run(command, shell=True, **how)
    assert (done.returncode != 0) == fails, f"{command}\n{done.stderr}"
    return done.stdout + (done.stderr if fails else "")


def rows(page: str, after: str) -> list[list[str]]:
    """Returns the entries of the first table below a heading."""
    text = (DOCS / page).read_text().partition(f"## {after}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


# ---- commands and what they print --------------------------------------------------------------


def sessions() -> dict[Path, str]:
    """Returns the commands and the shown output of each page that has some."""
    found = {page: "".join(blocks(page, "console")) for page in PAGES}
    return {page: text for page, text in found.items() if text}


def lines(text: str) -> str:
    """Returns the text without empty lines and without blanks at the ends of lines."""
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines() if line.strip())


@pytest.mark.parametrize("page", sessions(), ids=lambda page: page.stem)
def test_commands_print_what_is_shown(page: Path, tmp_path: Path) -> None:
    """The commands of a page, run one after another in one folder, print the shown output."""
    for part in re.split(r"^\$ ", sessions()[page], flags=re.M)[1:]:
        command, _, shown = part.partition("\n")
        pattern = r"(?:.*\n)*".join(map(re.escape, shown.split("…\n")))
        fails = re.match(r"cpd \w+: error: ", shown) is not None
        assert re.fullmatch(pattern, lines(shell(command, tmp_path, fails))), command


def test_a_command_is_shown() -> None:
    assert {"README", "first_steps", "reduce", "hardware"} <= {page.stem for page in sessions()}


@pytest.mark.parametrize("page", ["models", "reduce", "hardware"])
def test_five_tasks_in_ten_minutes(page: str) -> None:
    """Each page in docs/tasks has five tasks for users, which take less than ten minutes in all.

    Each task states its time and shows an output. Each page shows at least one error.
    """
    text = (DOCS / f"tasks/{page}.md").read_text()
    tasks = re.split(r"^## \d\. .*\?\n", text, flags=re.M)[1:]
    assert len(tasks) == 5
    assert sum(int(re.match(r"\*(\d+) s\.\* ", task)[1]) for task in tasks) < 600
    assert all(re.search(r"^(\$ |```text\n.)", task, flags=re.M) for task in tasks)
    assert re.search(r"error: |except ValueError", text)


RUN_BY = {
    "./dev demo": ("tests/python/lab/demo/test_report.py", "measure(SMALL"),
    "./dev test": (".ci/run", "./dev test"),
    "./dev wheel": ("tests/python/package/test_install.py", "wheel"),
    "pip install .": ("tests/python/package/test_install.py", "install"),
    "pip install --no-build": ("tests/python/package/test_install.py", "no-build-isolation"),
    "pip install scikit-build-core": ("tests/python/package/test_install.py", "no-build-isolation"),
    "pip install ./python": ("tests/python/package/test_install.py", "cpd_lab"),
    "pip install cpd_lab-*.whl": ("tests/python/package/test_install.py", "cpd_lab-"),
    "pip install cpd-*.whl": ("tests/python/package/test_install.py", "whl"),
    "pip install 'torch>=2.11'": ("pyproject.toml", "torch>=2.11"),
}
"""Maps commands of README that are slow or install something to the file that runs the command
elsewhere, and to a word that this file must contain."""


def test_who_runs_the_other_commands_of_readme() -> None:
    commands = "".join(blocks(ROOT / "README.md", "sh")).splitlines()
    assert commands
    for command in commands:
        file, word = next(RUN_BY[each] for each in RUN_BY if command.startswith(each))
        assert word in (ROOT / file).read_text(), command


# ---- pictures ------------------------------------------------------------------------------------


def pictures() -> dict[str, str]:
    """Returns the command of each picture in the gallery."""
    parts = (DOCS / "gallery.md").read_text().split("\n## ")[1:]
    found = {}
    for part in parts:
        for name in re.findall(r"\(pictures/(.*?)\)", part):
            (found[name],) = re.findall(r"```sh\n(.*?)```", part, re.DOTALL)
    return found


def words(picture: Path) -> list[str]:
    """Returns the words in an SVG picture, without numbers, which depend on the machine."""
    found = re.findall(r"<text[^>]*>(.*?)</text>", picture.read_text(), re.DOTALL)
    bare = (re.sub(r"<[^>]*>|[\d⁰¹²³⁴-⁹.,%\s−-]+", "", text) for text in found)
    return sorted({text for text in bare if text})


def test_every_picture_is_in_the_gallery() -> None:
    assert sorted(pictures()) == sorted(path.name for path in (DOCS / "pictures").iterdir())


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.exhaustive] if name.startswith(LONG) else [])
        for name in pictures()
        if name.endswith(".svg")
    ],
)
def test_a_picture_is_what_its_command_draws(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    shell(pictures()[name], tmp_path)
    assert words(tmp_path / name) == words(DOCS / "pictures" / name) != []


# ---- why -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("why.md", "Right where others are not"), ids=" ".join)
def test_right_where_others_are_not(row: list[str]) -> None:
    f, given, expected, others = row
    x = np.uint32([int(given.split("`")[1], 16)]).view(np.float32)
    (bits,) = cpd.cast(x, f).view(np.uint32).tolist()
    if expected == "NaN":
        assert np.isnan(np.uint32([bits]).view(np.float32))
    else:
        assert f"{bits:08X}" == expected.split("`")[1]
    assert f"`{bits:08X}`" not in others


# ---- coming from another library -----------------------------------------------------------------


def calls_of_porting() -> list[str]:
    """Returns the calls of CPD in the tables of porting.md."""
    text = (DOCS / "porting.md").read_text()
    cells = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    return re.findall(r"`((?:with )?(?:cpd|recipe)\.[^`]*[):])`", cells)


@pytest.mark.parametrize("call", calls_of_porting())
def test_calls_of_porting_run(call: str) -> None:
    torch = pytest.importorskip("torch")
    if "compat.transformer_engine" in call:
        assert cpd.compat.transformer_engine.qfactory(cpd.Recipe("mxfp8"))
        return  # needs the library itself
    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 64))
    x = torch.randn(4, 64)
    codes, scales = cpd.encode(x, "mxfp8")
    a, b = torch.randn(8, 32), torch.randn(32, 4)
    recipe, group = cpd.Recipe("mxfp8"), None
    optimizer = torch.optim.SGD(model.parameters())
    names = {"cpd": cpd, "torch": torch, **locals()}
    exec(f"{call} pass" if call.endswith(":") else call, names)


def test_reductions_of_porting_are_those_of_2020() -> None:
    pytest.importorskip("torch")
    from cpd.compat import cpd2020

    found = {
        theirs: ours
        for row in rows("porting.md", "CPD of 2020")
        for theirs, ours in re.findall(
            r"`sum_gradients\((.*?)\)`.*`(cpd\.Reduce\(.*\))`", " ".join(row)
        )
    }
    assert len(found) == 3
    for theirs, ours in found.items():
        aps, kahan = "use_APS=True" in theirs, "use_kahan=True" in theirs
        assert eval(ours, {"cpd": cpd}) == cpd2020._reduction(aps, 5, 2, kahan)


def test_recipes_in_the_place_of_another_library_s() -> None:
    table = rows("porting.md", "TransformerEngine")
    names = [name for _, ours in table for name in re.findall(r'`"([\w-]+)"`', ours)]
    expected = ("te-delayed", "te-current", "mxfp8", "mxfp8-hybrid", "deepseek-v3", "nvfp4")
    assert names == list(expected)
    assert set(names) <= set(cpd.Recipe.named())


def test_blocks_of_transformer_engine() -> None:
    """The page porting.md names formats for TransformerEngine's Float8BlockScaling.

    These formats equal the formats of TransformerEngine's golden vectors.
    """
    (pow2,) = re.findall(r'pow2 = "(.*)"  # scales', (DOCS / "porting.md").read_text())
    for block in ("1x128", "128x128"):
        golden = cpd.Scaled("e4m3fn", block=block, scale="fp32", rule="max_pow2", arithmetic="te")
        assert cpd.Scaled(f"fp8-block {block} {pow2}") == golden
    assert cpd.Scaled(f"fp8-block {pow2}").text == cpd.Scaled(f"fp8-block 1x128 {pow2}").text


def test_element_formats_of_microxcaling() -> None:
    """The page porting.md maps each element format of microxcaling to a format of CPD.

    Elements of the CPD format have the widths that microxcaling's name states.
    """
    found = {}
    for left, right in rows("porting.md", "microxcaling"):
        theirs, ours = re.findall(r"`'(\w+)'`", left), re.findall(r'`"(mx[\w-]+)"`', right)
        if theirs and ours:
            found |= dict(zip(theirs, ours, strict=True))
    assert len(found) == 6
    for theirs, ours in found.items():
        element = cpd.Scaled(ours).element
        bits = re.search(r"(\d)(?:_e(\d)m(\d))?$", theirs)
        assert bits is not None
        assert element.bits == int(bits[1])
        if bits[2]:
            assert (element.exp, element.man) == (int(bits[2]), int(bits[3]))


def test_rules_of_torchao() -> None:
    (row,) = (row for row in rows("porting.md", "torchao") if "ScaleCalculationMode" in row[0])
    x = np.float32([[3.0] * 32])
    for rule in re.findall(r"`(?:rule=)?(\w+)`", row[1]):
        assert cpd.Scaled(f"mxfp8 rule={rule}").rule == rule
        cpd.cast(x, f"mxfp8 rule={rule}")
    assert cpd.Scaled("mxfp8").rule == "floor"


# ---- glossary ------------------------------------------------------------------------------------


def test_the_glossary_is_in_order() -> None:
    parts = blocks(DOCS / "glossary.md", r"\{glossary\}")
    assert len(parts) == 2
    for block in parts:
        terms = [part.splitlines()[0] for part in block.strip().split("\n\n")]
        keys = [re.sub(r"\W", "", term).lower() for term in terms]
        assert len(keys) > 15
        assert keys == sorted(keys)
