# SPDX-License-Identifier: Apache-2.0
"""Tests the command `cpd`: formats, help texts, and errors for wrong arguments."""

import json
import math
import os
import re
import subprocess
import sys

import pytest

import cpd
import forked
from cpd.cli import main


def run(*arguments: str) -> int:
    """Returns the exit status of `cpd ARGUMENTS`, even if the argument parser ends the program."""
    try:
        return main(list(arguments))
    except SystemExit as stop:
        return int(stop.code or 0)


def formats_as_json(capsys, *arguments: str) -> list[dict]:
    assert run("show", "--json", *arguments) == 0
    return json.loads(capsys.readouterr().out)


def test_format_figures(capsys):
    e4m3, e5m2fnuz = formats_as_json(capsys, "e4m3", "e5m2fnuz")
    assert (e4m3["max"], e4m3["min_normal"], e4m3["min_subnormal"]) == (240, 2**-6, 2**-9)
    assert (e4m3["bits"], e4m3["epsilon"], e4m3["num_values"]) == (8, 0.125, 239)
    assert (e5m2fnuz["max"], e5m2fnuz["bias"], e5m2fnuz["encoding"]) == (57344, 16, "fnuz")


def test_format_without_names_lists_common_ones(capsys):
    names = [row["name"] for row in formats_as_json(capsys)]
    assert {"fp32", "bf16", "e5m2", "e4m3", "e3m0"} <= set(names)


def test_format_values_are_those_of_the_codes(capsys):
    (row,) = formats_as_json(capsys, "e2m1", "--values")
    positive = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    assert row["values"] == [
        {"code": code, "value": value}
        for code, value in enumerate(positive + [-v for v in positive])
    ]


def test_format_values_of_an_eight_bit_format(capsys):
    (row,) = formats_as_json(capsys, "e4m3", "--values")
    finite = {v["value"] for v in row["values"] if not isinstance(v["value"], str)}
    assert finite == set(cpd.Format("e4m3").values().tolist())
    assert len(row["values"]) == 256
    assert row["values"][0x78] == {"code": 0x78, "value": "inf"}


@pytest.mark.parametrize("columns", [80, 120])
def test_format_tables_fit_the_screen(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert run("show") == 0
    assert run("show", "e4m3", "e3m0", "e5m2fnuz", "--values") == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    assert any("e4m3fn" in line and "448" in line for line in lines)


@pytest.mark.parametrize(
    ("text", "modules"),
    [("trian", set()), ("train --formt e4m3", {"train"}), ("show nvpf4", {"show"})],
)
def test_only_the_command_s_module_is_imported(text, modules):
    program = (
        "import sys; from cpd import cli\n"
        "try: cli.main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "names = {module.rpartition('.cli.')[2] for module in sys.modules if '.cli.' in module}\n"
        "print(*names & set(cli._COMMANDS))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *text.split()], capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()) == modules


def test_help_without_a_command(capsys):
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("usage: cpd ")
    assert "show" in printed.out
    assert printed.err == ""


def test_module_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "cpd", "show", "e4m3", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert math.isclose(json.loads(done.stdout)[0]["max"], 240)
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show e4m3 --values --json", ""),
        ("vectors mul e4m3fn --random 100000 -o -", "100,000 lines, 1.2 MB\n"),
    ],
)
def test_a_closed_pipe_is_no_error(words, said):
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "cpd", *words.split()],
        stdout=write,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(write)
    assert done.stderr == said
    assert done.returncode == 141


# ---- pipes and terminals ---------------------------------------------------------------------

ESCAPE = "\x1b"
TRAIN = ["train", "--reduce", "e3m0", "--epochs", "1", "--depth", "1", "--width", "8"]
TRAIN += ["--images", "160"]
COMMANDS = [
    ["show"],
    ["show", "e4m3", "--values"],
    ["show", "--compare", "e4m3", "e5m2"],
    ["show", "--units"],
    TRAIN,
    ["show", "what"],
    ["--help"],
    ["train", "--help"],
]


def start(arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs `cpd ARGUMENTS` with pipes for both outputs."""
    clean = {
        name: value
        for name, value in os.environ.items()
        if name not in ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "TTY_COMPATIBLE")
    }
    return forked.run(
        ["-m", "cpd", *arguments],
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def started(arguments: list[str], **environment: str) -> str:
    done = start(arguments, **environment)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.few("", 2)
@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_no_escape_codes_in_pipes(arguments):
    plain = started(arguments)
    assert ESCAPE not in plain
    assert "\r" not in plain
    assert started(arguments, NO_COLOR="1") == plain
    if arguments in (["show"], ["show", "--units"], TRAIN):
        assert started(arguments, TERM="xterm-256color", COLORTERM="truecolor") == plain
        assert started(arguments, NO_COLOR="1", FORCE_COLOR="1") == plain
        forced = started(arguments, FORCE_COLOR="1")
        # The output has styles, because FORCE_COLOR demands them. The output never moves the
        # cursor.
        assert re.sub(ESCAPE + r"\[[0-9;]*m", "", forced) == plain


def in_a_terminal(arguments: list[str], columns: int, **environment: str) -> str:
    """Returns the output of `cpd ARGUMENTS` on a terminal that is `columns` columns wide."""
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    clean = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}
    child = forked.Program(
        ["-m", "cpd", *arguments],
        env=clean | {"TERM": "xterm"} | environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    written = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        written += part
    os.close(ours)
    assert child.wait() == 0
    return written.decode()


def test_a_terminal_shows_the_same_text():
    plain = started(["show", "--units"], COLUMNS="100")
    shown = in_a_terminal(["show", "--units"], 100)
    assert re.sub(ESCAPE + r"\[[0-9;]*m", "", shown).replace("\r\n", "\n") == plain
    assert ESCAPE not in in_a_terminal(["show", "--units"], 100, NO_COLOR="1")
    trained = in_a_terminal(TRAIN, 80)
    assert "epochs" in trained  # the bar, which is taken away at the end
    assert "accuracy " in trained.splitlines()[-2]


# ---- results to standard output --------------------------------------------------------------


def test_training_to_standard_output_is_json_alone(tmp_path):
    pytest.importorskip("torch")
    file = tmp_path / "result.json"
    done = start([*TRAIN, "--json", "-"])
    told = start([*TRAIN, "--json", str(file)])
    assert done.returncode == told.returncode == 0
    assert json.loads(done.stdout) == json.loads(file.read_text())
    assert told.stdout.startswith("(3,0): 8 nodes × 16 images, 1 epoch, 1 hidden layer of 8\n")
    assert all(line in done.stderr for line in told.stdout.splitlines())


def test_one_of_a_thing_is_singular():
    pytest.importorskip("torch")
    told = start([*TRAIN, "--nodes", "1", "--batch", "1"]).stdout
    assert told.startswith("(3,0): 1 node × 1 image, 1 epoch, 1 hidden layer of 8\n")


def test_options_name_the_canonical_format(tmp_path):
    pytest.importorskip("torch")
    results = []
    for name in ("(4,3)", "E4M3", "float8_e4m3", "e4m3"):
        done = start([*TRAIN[:1], "--reduce", name, *TRAIN[3:], "--json", "-"])
        results.append(json.loads(done.stdout))
        assert "--reduce e4m3 " in results[-1]["options"]
    assert all(result == results[0] for result in results)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_is_told_in_one_line():
    pytest.importorskip("torch")
    done = start([*TRAIN, "--json", "/dev/full"])
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("cpd train: error: ")
    assert "No space left on device" in done.stderr
