# SPDX-License-Identifier: Apache-2.0
"""Mistakes are reported before torch, which takes seconds, rich and other commands are imported,
and with the name that was meant, or what a format of another family is and what comes next to
it."""

import json
import subprocess
import sys

import pytest

from cpd.cli import main

EARLY = [
    "trian",
    "train --reduc e4m3 --formt e4m3",
    "train --format e4m3",
    "train --reduce e4",
    "train --reduce nf4",
    "train --reduce 'int8 row'",
    "train --reduce 'qsgdd bits=4'",
    "train --reduce 'e4m3 apps'",
    "train --recipe nvpf4",
    "train --model resnet",
    "train --data cifar",
    "train --optimizer adm",
    "train --schedule polinomial",
    "train --nodes 200",
    "train --nodes 0",
    "train --reduce 'fp32 group_size=9'",
    "train --reduce 'fp32 exchange=ring'",
    "train --reduce 'e4m3 aps loss_scale=8'",
    "train --width 8 --model resnet18 --depth 3",
    "train --json no/such/folder/x.json",
    "train --save-gradients x.txt",
    "train --transport torch",
    "roundoff --reduce e5m",
    "roundoff --group-sizes 0",
    "roundoff --nodes 0",
    "roundoff --model mpl",
    "roundoff --gradients nowhere.npz",
    "roundoff --plot x.txt",
    "compress nowhere.npz --codec mxfp8",
    "compress nowhere.npz --codec qsgdd",
    "compress nowhere.txt --codec mxfp8",
    "cost --model alexnt",
    "cost --machine ec2",
    "cost --reduce e9m9",
    "sweep nowhere.npz",
    "sweep nowhere.npz --formats e9m1",
    "show e4m3fm",
    "show --recipes nvpf4",
    "show nowhere.toml",
    "presets",
    "vectors mull e4m3",
    "replay nowhere.npz",
    "study run aps",
    "demo --jobs 0",
    "demo --seeds 0",
    "report nowhere",
    "completion fsh",
]
PROGRAM = """
import contextlib, io, json, os, shlex, sys
for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
    os.environ.pop(name, None)
from cpd.cli import main
found = {}
for text in json.loads(sys.argv[1]):
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        try:
            status = main(shlex.split(text))
        except SystemExit as stop:
            status = stop.code
    late = [name for name in ("torch", "rich") if name in sys.modules]
    found[text] = status, told.getvalue(), late
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(EARLY)],
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("early"),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("text", EARLY)
def test_what_is_not_imported(found, text):
    status, told, late = found[text]
    assert status == 2, told
    assert told.count("\n") == 1
    assert late == []


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("trian", "did you mean train?"),
        ("train --reduc e4m3 --formt e4m3", "unrecognized arguments: --formt e4m3"),
        ("train --recipe nvpf4", "did you mean nvfp4?"),
        ("train --model resnet", "did you mean resnet18?"),
        ("train --optimizer adm", "did you mean adam?"),
        ("train --data cifar", "did you mean cifar10?"),
        ("cost --model alexnt", "did you mean alexnet?"),
        ("show e4m3fm", "did you mean 'e4m3fn'?"),
        ("completion fsh", "did you mean fish?"),
        ("study run aps", "did you mean aps-fcn?"),
        ("train --reduce 'int8 row'", "a codec of rows, int8_rows or fp8_rows"),
    ],
)
def test_the_name_that_was_meant(found, text, meant):
    assert meant in found[text][1]


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
