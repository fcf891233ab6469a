# SPDX-License-Identifier: Apache-2.0
"""Tests which words bash completes with the script of `cpd completion`."""

import shutil
import subprocess

import pytest

from cpd.cli import main
from cpd.cli.completion import SHELLS

pytest.importorskip("shtab")


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    import contextlib
    import io

    made = io.StringIO()
    with contextlib.redirect_stdout(made):
        assert main(["completion", "bash"]) == 0
    path = tmp_path_factory.mktemp("completion") / "cpd"
    path.write_text(made.getvalue())
    return path


def completed(script, *words: str) -> list[str]:
    """Returns the completions that bash offers for the last word."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    line = " ".join(f"'{word}'" for word in words)
    program = f"""
source {script}
COMP_WORDS=({line})
COMP_CWORD={len(words) - 1}
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
name=$(complete -p cpd | sed 's/.*-F \\([^ ]*\\).*/\\1/')
$name
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([bash, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["cpd", "re"], {"replay", "report"}),
        (["cpd", "show", "nv"], {"nvfp4"}),
        (["cpd", "show", "mxfp6"], {"mxfp6-e3m2", "mxfp6-e2m3"}),
        (["cpd", "show", "h100-fp"], {"h100-fp16", "h100-fp8"}),
        (["cpd", "train", "--redu"], {"--reduce"}),
        (["cpd", "train", "--reduce", "mxfp8-"], {"mxfp8-e5m2"}),
        (["cpd", "vectors", "--tininess", "b"], {"before"}),
        (["cpd", "train", "--recipe", "te-"], {"te-delayed", "te-current"}),
        (["cpd", "study", "r"], {"run", "report"}),
        (["cpd", "replay", "--accumulator", "h100-fp8"], {"h100-fp8"}),
    ],
)
def test_bash_completes(script, words, some):
    assert set(completed(script, *words)) == some


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_has_a_script(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "roundoff" in script
    assert "te-delayed" in script


def test_without_the_package(capsys, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "needs the Python package 'shtab' (pip install shtab)" in capsys.readouterr().err
