# SPDX-License-Identifier: Apache-2.0
"""Tests the summary of `./dev test`, from JUnit files of ctest, GoogleTest and pytest."""

import os
import subprocess
import sys
import time
from pathlib import Path

import patience

SUMMARY = Path(__file__).parents[2] / "testing/summary.py"

CTEST = """<?xml version="1.0" encoding="UTF-8"?>
<testsuite name="Linux-g++" tests="3" failures="0" disabled="0" skipped="1">
  <testcase name="ops.cast" classname="ops.cast" time="1" status="run"><system-out/></testcase>
  <testcase name="package.cpp" classname="package.cpp" time="1" status="run"/>
  <testcase name="comm.mpi" classname="comm.mpi" time="0" status="notrun">
    <skipped message="SKIP_RETURN_CODE=77"/>
    <system-out>building
no MPI here
</system-out>
  </testcase>
</testsuite>
"""
SLOW = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="0" failures="0" skipped="0">
  <testcase classname="test_cast" name="test_a" time="7000.5"/>
  <testcase classname="test_cast" name="test_b" time="8000.5">
    <properties><property name="slow" value="a network of 1999"/></properties>
  </testcase>
</testsuite></testsuites>
"""
GOOGLE = """<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="4" failures="0" disabled="1" errors="0" name="AllTests">
  <testsuite name="Cast" tests="4" failures="0" disabled="1" skipped="1">
    <testcase name="Rounds" status="run" result="completed" classname="Cast" />
    <testcase name="Keeps/1" value_param="x" status="run" result="completed" classname="Cast" />
    <testcase name="DISABLED_Off" status="notrun" result="suppressed" classname="Cast" />
    <testcase name="OnGpu" status="run" result="skipped" classname="Cast">
      <skipped message="/some/where.cpp:12&#x0A;no GPU&#x0A;"><![CDATA[no GPU]]></skipped>
    </testcase>
  </testsuite>
</testsuites>
"""
PYTEST = """<?xml version="1.0" encoding="utf-8"?>
<testsuites name="pytest tests"><testsuite name="pytest" errors="0" failures="1" skipped="1">
  <testcase classname="test_cast" name="test_a" time="0.1"/>
  <testcase classname="test_cast" name="test_b"><failure message="no">x</failure></testcase>
  <testcase classname="test_gpu" name="test_c" time="0.1">
    <skipped type="pytest.skip" message="no CUDA device">test_gpu.py:3: no CUDA device</skipped>
  </testcase>
</testsuite></testsuites>
"""


def run(tmp_path, *options, **texts):
    paths = []
    for name, text in texts.items():
        paths.append(tmp_path / f"{name}.xml")
        paths[-1].write_text(text)
    command = [sys.executable, SUMMARY, *options, *paths]
    alone = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}  # as `./dev test` starts it
    return subprocess.run(command, capture_output=True, text=True, check=False, env=alone)


def summary(tmp_path, **texts):
    done = run(tmp_path, **texts)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_of_all_three(tmp_path):
    lines = summary(tmp_path, ctest=CTEST, google=GOOGLE, google2=GOOGLE, python=PYTEST)
    assert [line.strip() for line in lines] == [
        "skipped, with the number of times:",
        "2 Cast.OnGpu: no GPU",
        "1 comm.mpi: no MPI here",
        "1 test_gpu: no CUDA device",
        "the slowest, in seconds:",
        "0.1 test_cast.test_a",
        *["0.0 Cast.Rounds", "0.0 Cast.Keeps/1"] * 2,
        "0.0 test_cast.test_b",
        "4 C++ tests in 2 programs and scripts; Python: 1 failed, 1 passed, 1 skipped",
    ]


def test_slow_tests_want_a_reason(tmp_path, monkeypatch):
    monkeypatch.setenv(patience.NAME, f"1.5@{int(time.time())}")
    assert summary(tmp_path, python=SLOW)[1:4] == [
        "the slowest, in seconds:",
        " 8000.5 test_cast.test_b: a network of 1999",
        " 7000.5 test_cast.test_a",
    ]
    done = run(tmp_path, "--quick", python=SLOW)
    said = "quick tests above 30 s without a reason: test_cast.test_a\n"
    assert (done.returncode, done.stderr) == (0, said)
    short = run(tmp_path, "--quick", python=SLOW.replace("7000.5", "29.0"), google=GOOGLE)
    assert (short.returncode, short.stderr) == (0, "")
