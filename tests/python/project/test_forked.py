# SPDX-License-Identifier: Apache-2.0
"""Programs that begin as forks behave as those that an interpreter begins: every case runs both
ways."""

import os
import signal
import subprocess
import sys

import pytest

import forked
from patience import scaled


@pytest.fixture(params=["forked", "started"])
def begin(request):
    """Begins a program of these arguments: forked.Program or subprocess.Popen."""
    if request.param == "forked":
        return forked.Program
    return lambda words, **how: subprocess.Popen([sys.executable, *words], **how)


@pytest.fixture
def program(tmp_path):
    """Writes a program's text to a file."""

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


def test_a_module(begin, tmp_path):
    (tmp_path / "words.py").write_text("import sys; print(sys.argv[1:], __name__)")
    how = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(tmp_path)}}
    assert said(begin, ["-m", "words", "x"], **how) == (0, "['x'] __main__\n", "")


@pytest.mark.parametrize(
    ("end", "status"),
    [
        *(("sys.exit(3)", 3), ("os._exit(4)", 4), ("sys.exit('no')", 1), ("1 / 0", 1)),
        *(("os.abort()", -signal.SIGABRT), ("raise KeyboardInterrupt", -signal.SIGINT)),
        ("pass", 0),
    ],
)
def test_endings(begin, program, end, status):
    path = program(f"import atexit, os, sys\natexit.register(print, 'at exit')\n{end}\n")
    code, out, err = said(begin, [path])
    assert code == status
    assert out == ("" if "_exit" in end or "abort" in end else "at exit\n")
    if end == "1 / 0":
        assert err.endswith("ZeroDivisionError: division by zero\n")


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


def test_interrupted(begin, program):
    path = program("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    with begin([path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout.readline() == "begun\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.wait(scaled(60)) == -signal.SIGINT


def test_sessions(begin, program):
    path = program("import os; print(os.getsid(0) == os.getpid())")
    assert said(begin, [path], start_new_session=True)[1] == "True\n"
    assert said(begin, [path])[1] == "False\n"


def test_time_is_limited(begin, program):
    path = program("import time; time.sleep(60)")
    with begin([path], stdout=subprocess.PIPE) as process:
        with pytest.raises(subprocess.TimeoutExpired):
            process.communicate(timeout=0.2)
        process.kill()
    assert process.returncode == -signal.SIGKILL


def test_has_no_files_of_others(begin, program, tmp_path):
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import time; time.sleep(1)")
    others = [begin([sleeper], stdout=subprocess.PIPE) for _ in range(3)]
    path = program(
        "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in range(3, 9) if "
        "os.path.exists(f'/proc/self/fd/{n}')])"
    )
    assert said(begin, [path])[1] == "[]\n"
    for other in others:
        with other:
            assert other.wait(scaled(60)) == 0
