# SPDX-License-Identifier: Apache-2.0
"""Tests that programs started as forks get the arguments and the signals of ordinary programs."""

import signal
import subprocess
import sys

import pytest

import forked
from patience import scaled


@pytest.fixture(params=["forked", "started"])
def begin(request):
    """Returns the function that starts a program: forked.Program or subprocess.Popen."""
    if request.param == "forked":
        return forked.Program
    return lambda words, **how: subprocess.Popen([sys.executable, *words], **how)


@pytest.fixture
def program(tmp_path):
    """Returns a function that writes a program's text to a file."""

    def write(text):
        path = tmp_path / "program.py"
        path.write_text(text)
        return path

    return write


def said(begin, words, **how):
    process = begin(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **how)
    out, err = process.communicate(timeout=scaled(60))
    return process.returncode, out, err


def test_arguments_folder_environment(begin, program, tmp_path):
    path = program(
        "import os, sys; print(sys.argv[1:], os.getcwd(), sorted(os.environ)[:1], __name__)"
    )
    result = said(begin, [path, "a b", "é"], cwd=tmp_path, env={"A": "1", "PYTHONUTF8": "1"})
    assert result == (0, f"['a b', 'é'] {tmp_path} ['A'] __main__\n", "")


def test_signals_are_an_interpreters(begin, program):
    path = program(
        "import signal\n"
        "for number in signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD:\n"
        "    print(signal.getsignal(number), number in signal.pthread_sigmask(0, []))\n"
    )
    default = signal.Handlers.SIG_DFL
    assert said(begin, [path])[1].splitlines() == [
        f"{signal.default_int_handler} False",
        f"{default} False",
        f"{signal.Handlers.SIG_IGN} False",
        f"{default} False",
    ]
