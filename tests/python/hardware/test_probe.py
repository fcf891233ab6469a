# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.hardware.probe`. The probe finds the rule of a hidden function, for all presets and
for random rules, and reports sums that follow no rule. Commands that fail raise an error with the
reason."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.hardware import Command, Probed, probe
from cpd.hardware.probing.dots import Dots, Inputs
from cpd.hardware.probing.fit import Regimes
from cpd.hardware.probing.rules import Known
from patience import scaled

DEEP = 128
"""The number N of products after which some matrix units add their sum to a sum in a wider format.
Dot products of length 2 N reveal this."""


def hidden(acc: cpd.Accumulator, c: str | None = "fp32", k: int = 32, seed: int = 0) -> Probed:
    """Returns the probe's result for an accumulator. The probe sees only the accumulator's sums."""
    a, b = (acc.a, acc.b) if acc.form == "unit" else ("fp16", "fp16")
    return probe(Known(acc).sums, a, b, c, k=k, seed=seed)


def differences(found: Probed, acc: cpd.Accumulator, seed: int = 99) -> int:
    """Computes random sums, which the probe has not seen, by the accumulator that the probe found
    and by the true one. Returns how many results differ. Results that are not finite do not
    count."""
    assert found.accumulator is not None
    inputs = Inputs(found.a, found.b, found.c, found.k)
    regimes = Regimes(Known(acc), inputs, None, list(range(found.k)))
    rng = np.random.default_rng(seed)
    dots = regimes.mixed(rng, 900)
    given, wanted = (Known(one)(dots) for one in (found.accumulator, acc))
    finite = np.isfinite(wanted)
    return int(np.count_nonzero(given[finite] != wanted[finite]))


# ---- every preset --------------------------------------------------------------------------------


def outputs() -> list[tuple[str, str]]:
    """Returns every preset matrix unit with each of its output formats. Of several presets that
    compute alike, only the first is returned."""
    found: dict[str, tuple[str, str]] = {}
    for name in cpd.Accumulator.named():
        for output in ("fp32", "fp16"):
            try:
                acc = cpd.Accumulator(output, scheme=name)
            except ValueError:
                continue
            found.setdefault(f"{acc} {output}", (name, output))
    return list(found.values())


QUICK = {
    ("v100", "fp32"), ("h100-fp16", "fp16"), ("a100-bf16", "fp32"), ("h100-fp8", "fp32"),
    ("hopper-mma-fp8", "fp16"), ("cdna1-fp16", "fp32"), ("cdna3-fp8", "fp32"),
    ("rtx-blackwell-mxfp4", "fp32"),
}  # fmt: skip


@pytest.mark.few("", 2)
@pytest.mark.parametrize(
    ("name", "output"),
    [
        pytest.param(*one, marks=() if one in QUICK else pytest.mark.exhaustive, id="-".join(one))
        for one in outputs()
    ],
)
def test_presets(name: str, output: str) -> None:
    acc = cpd.Accumulator(output, scheme=name)
    unit = acc
    assert unit is not None
    k = 2 * DEEP if unit.promote == DEEP else 64 if max(unit.block, unit.group) >= 32 else 32
    found = hidden(acc, output, k)
    assert found.accumulator is not None
    assert found.accumulator.form == "unit"
    assert found.notes == ()
    if unit.scale is None or found.accumulator.scale is not None:
        assert (name if output == "fp32" else f"{name} in fp16") in found.presets
    assert differences(found, acc) == 0
    if unit.scale is None:
        assert found.accumulator.block == unit.block
        assert found.accumulator.adder == unit.adder
        assert found.accumulator.promote == unit.promote
        assert found.accumulator.sum == unit.sum
        assert found.accumulator.sum_rounding == unit.sum_rounding
        for field in ("group", "stride", "take"):
            assert getattr(found.accumulator, field) == getattr(unit, field)
        if unit.adder not in ("exact", "flushed_pairs"):
            assert found.accumulator.fraction_bits == unit.fraction_bits
    if found.accumulator.min_exponent != unit.min_exponent and unit.adder == "aligned":
        told = [one for one in found.unsure if one.startswith("min_exponent: any below ")]
        assert unit.min_exponent < int(told[0].split()[-1])


# ---- random units --------------------------------------------------------------------------------


def random_unit(seed: int) -> tuple[cpd.Accumulator, str]:
    rng = np.random.default_rng(seed)
    operand = str(rng.choice(["fp16", "bf16", "e5m2", "e4m3fn", "tf32"]))
    total = str(rng.choice(["fp32", "fp32", "fp16", "bf16", "e8m13"]))
    block = int(rng.choice([2, 3, 4, 5, 8, 16]))
    fields: dict[str, Any] = {
        "block": block,
        "fraction_bits": int(rng.integers(8, 28)),
        "min_exponent": int(rng.choice([-133, -20, -60])),
        "sum": total,
        "sum_rounding": str(rng.choice(["toward_zero", "nearest_even"])),
        "promote": int(rng.choice([0, 0, block, 2 * block])),
    }
    if fields["promote"] == 0 and rng.random() < 0.3:
        fields["addend"] = "separate"
    unit = cpd.Accumulator(a=operand, b=operand, **fields)
    promoted = "fp32" if fields["promote"] and total != "fp16" else total
    return unit.replace(format=promoted), "fp16" if total == "fp16" else "fp32"


@pytest.mark.parametrize(
    "seed",
    [pytest.param(n, marks=() if n < 4 else pytest.mark.exhaustive) for n in range(60)],
)
def test_random_units(seed: int) -> None:
    acc, c = random_unit(seed)
    found = hidden(acc, c, 32, seed)
    assert found.rule, str(acc)
    assert differences(found, acc) == 0, f"{acc}\n{found}"


# ---- sums of floats ------------------------------------------------------------------------------

FLOATS = [
    "fp32",
    "fp32 sequential rounding=toward_zero",
    "fp32 sequential rounding=up",
    "bf16 sequential product=exact",
    "e4m3 sequential",
    "e6m9 chunked chunk=8 inner=e8m13",
    "fp16 chunked chunk=16 inner=fp32",
    "e8m13 pairwise rounding=down",
    "fp32 kahan",
    "bf16 sequential product=e8m5",
]


@pytest.mark.few("", 2)
@pytest.mark.parametrize("c", ["fp32", None])
@pytest.mark.parametrize("text", FLOATS)
def test_sums_of_floats(text: str, c: str | None) -> None:
    acc = cpd.Accumulator(text)
    found = hidden(acc, c)
    assert found.accumulator is not None
    assert differences(found, acc) == 0
    alike = [found.rule, *(one.removeprefix("also ") for one in found.unsure)]
    assert str(acc) in alike


@pytest.mark.parametrize(
    ("text", "operand"),
    [("int32", "int8"), ("fixed<26,3> overflow=saturate", "int8"), ("fixed<40,12>", "fp16"),
     ("fixed<24,8> sum_rounding=nearest_even", "e4m3fn")],
)  # fmt: skip
def test_sums_in_integers(text: str, operand: str) -> None:
    acc = cpd.Accumulator(text)
    assert probe(Known(acc).sums, operand, k=16).accumulator == acc


def test_a_tree_that_is_no_scheme() -> None:
    """The probe reports the tree of a vectorized float32 sum, which no accumulator of CPD matches:
    eight lanes, whose sums are added as a tree."""

    def lanes(a: Any, b: Any) -> Any:
        p = (a * b).astype(np.float32)
        total = p[:, :8]
        for at in range(8, p.shape[1], 8):
            total = total + p[:, at : at + 8]
        for width in (4, 2, 1):
            total = total[:, :width] + total[:, width : 2 * width]
        return total[:, 0]

    found = probe(lanes, "fp16", c=None, k=32)
    assert found.accumulator is None
    assert found.rule == "fp32 in this order, product=fp32 rounding=nearest_even"
    assert found.order.startswith("((((((0 + 8) + 16) + 24) + (((4 + 12) + 20) + 28))")


def test_the_addend_at_the_end() -> None:
    def after(a: Any, b: Any, c: Any) -> Any:
        sums = cpd.gemm(a[:, None, :], b[:, :, None], "h100-fp16")[:, 0, 0]
        return sums + c

    found = probe(after, "fp16", k=32)
    assert found.accumulator is not None
    assert found.accumulator.form == "unit"
    assert (
        found.accumulator.block,
        found.accumulator.promote,
        found.accumulator.fraction_bits,
    ) == (16, 32, 25)
    assert found.order == "(c + [[0…15] 16…31])"


def test_a_narrow_result_of_a_wide_sum() -> None:
    def narrow(a: Any, b: Any, c: Any) -> Any:
        return cpd.cast(cpd.gemm(a[:, None, :], b[:, :, None], "fp32", c[:, None, None])[:, 0, 0],
                        "bf16")  # fmt: skip

    found = probe(narrow, "fp16", k=16)
    assert found.rule == "fp32 sequential, the sum then rounded to bf16"
    assert found.accumulator is None


# ---- none ----------------------------------------------------------------------------------------


def test_what_follows_no_rule_is_told_so() -> None:
    def nearly(a: Any, b: Any, c: Any) -> Any:
        sums = Known(cpd.Accumulator("h100-fp16")).sums(a, b, c)
        return np.where(np.abs(sums) > 100, np.round(sums), sums)  # a fault of its own

    found = probe(nearly, "fp16", k=32)
    assert (found.accumulator, found.rule) == (None, "")
    assert "none of CPD's gives these sums" in str(found)
    assert json.loads(json.dumps(found.row()))["accumulator"] is None


def test_faults_beyond_the_range_are_noted() -> None:
    acc = cpd.Accumulator("h100-bf16")

    def saturating(a: Any, b: Any, c: Any) -> Any:
        sums = Known(acc).sums(a, b, c)
        largest = np.finfo(np.float32).max
        return np.where(np.isinf(sums), np.sign(sums) * largest, sums).astype(np.float32)

    found = probe(saturating, "bf16", k=32)
    assert found.accumulator == acc
    assert [note.split(":")[0] for note in found.notes] == [
        "sums near and beyond the range",
        "sums of Inf and NaN",
    ]


def test_random_sums_are_refused() -> None:
    draw = np.random.default_rng(0)
    with pytest.raises(ValueError, match="gave two results for one dot product"):
        probe(lambda a, b, c: c + draw.random(len(c)), "fp16", k=8)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"k": 1}, "k must be 2…1024, got 1"),
        ({"a": "e8m0"}, "one of a and b must be signed"),
        ({"c": "e8m0"}, "c must be a signed format"),
        ({"a": "e4n3"}, "unknown format 'e4n3'"),
    ],
)
def test_arguments_are_checked(arguments: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        probe(lambda a, b, c: c, **{"a": "fp16", **arguments})


def test_shapes_are_checked() -> None:
    with pytest.raises(ValueError, match="must give 64 numbers for 64 dot products"):
        probe(lambda a, b, c: c[:-1], "fp16", k=4)
    with pytest.raises(TypeError, match="function must be a function, got str"):
        probe("h100-fp16", "fp16")  # type: ignore[arg-type]


def test_matmul() -> None:
    acc = cpd.Accumulator("a100")
    found = probe(lambda a, b, c: cpd.gemm(a, b, acc, c), "fp16", k=16, matmul=True)
    assert "a100" in found.presets
    with pytest.raises(ValueError, match=r"must be of shape \(64, 64\), got \(1,\)"):
        probe(lambda a, b: np.zeros(1), "fp16", c=None, k=2, matmul=True)


# ---- commands ------------------------------------------------------------------------------------

SERVER = Path(__file__).parents[1] / "ranks" / "probe_server.py"


def served(*extra: str) -> list[str]:
    return [sys.executable, str(SERVER), "a100-tf32", *extra]


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(served(), "tf32")
    dots = Inputs(*map(cpd.Format, ("tf32", "tf32", "fp32")), 8).random(
        np.random.default_rng(0), 50, [list(range(8))], (-3, 3)
    )
    wanted = Known(cpd.Accumulator("a100-tf32"))(Dots(dots.a, dots.b, dots.c))
    assert np.array_equal(command(dots.a, dots.b, dots.c), wanted)
    assert np.array_equal(Command(served("{in}", "{out}"), "tf32")(dots.a, dots.b, dots.c), wanted)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    status = main(["probe", "--a", "tf32", "--k", "8", "--json", str(file), "--", *served()])
    assert status == 0
    told = capsys.readouterr().out
    assert "rule       fp32 block_fma a=tf32 b=tf32 block=4 fraction_bits=24" in told
    found = json.loads(file.read_text())
    assert found["unit"]["block"] == 4
    assert cpd.Accumulator(found["accumulator"]).form == "unit"


def test_command_line_of_an_accumulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--accumulator", "e6m9 chunked chunk=4", "--c", "none", "--k", "16"]) == 0
    assert "rule       e6m9 chunked chunk=4\n" in capsys.readouterr().out
    for arguments in ([], ["--accumulator", "fp32", "--", "true"]):
        assert main(["probe", *arguments]) == 2
        assert "give either a command or --accumulator, got " in capsys.readouterr().err
    assert main(["probe", "--accumulator", "e4n3"]) == 2


@pytest.mark.parametrize(("unit", "a"), [("h100-fp8", "e4m3fn"), ("h100-fp8 a=e5m2", "e5m2")])
def test_a_unit_is_probed_in_its_own_formats(
    unit: str, a: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["probe", "--accumulator", unit, "--k", "4"]) == 0
    assert f" a={a} b=e4m3fn block=" in capsys.readouterr().out


def test_formats_that_are_given_precede_a_units_own(capsys: pytest.CaptureFixture[str]) -> None:
    main(["probe", "--accumulator", "h100-tf32", "--a", "fp16", "--k", "4"])
    assert "4 products of fp16, an addend" in capsys.readouterr().out


FAILURES = [
    (["/nowhere/unit"], "'/nowhere/unit' does not start: No such file or directory"),
    (["false"], "'false' ended with status 1 after 0 of 1 answers"),
    (["sh", "-c", "echo broken pipe >&2; exit 3"], "ended with status 3 after 0 of 1 answers: "
     "'broken pipe'"),
    (["sh", "-c", "kill -SEGV $$"], "was ended by signal 11 after 0 of 1 answers"),
    (["true"], "gave 0 answers to 1 dot products"),
    (["sh", "-c", "echo 0; echo 1"], "line 2 of its output, '1', is one answer more than 1"),
    (["sh", "-c", "echo; echo '# unit'; echo 0000xxxx"],
     "line 3 of its output, '0000xxxx', is no hexadecimal code"),
    (["sh", "-c", "echo 1_0"], "line 1 of its output, '1_0', is no hexadecimal code"),
    (["sh", "-c", "echo 12345"], "line 1 of its output, '12345', has more than 16 bits"),
    (["yes"], "prints more than 65604 bytes for 1 answers"),
    (["sh", "-c", "true {out}"], "wrote no {out}: No such file or directory"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "error"), FAILURES)
def test_commands_that_fail(arguments: list[str], error: str) -> None:
    command = Command(arguments, "fp16", c=None, result="fp16", timeout=scaled(60))
    ones = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError) as raised:
        command(ones, ones)
    assert error in str(raised.value)


CLOSED_PIPE = """
import os, signal
from cpd.hardware.probing.command import _write
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
read, write = os.pipe()
os.close(read)
try:
    _write(write, memoryview(b"0000"))
except BrokenPipeError:
    print("told")
"""


def test_a_command_that_reads_nothing_ends_no_process() -> None:
    """If a probed command does not read its input, the probe raises an error. The signal SIGPIPE
    must not end the process, even if SIGPIPE has its default handler."""
    done = subprocess.run([sys.executable, "-c", CLOSED_PIPE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "told\n")


@pytest.mark.parametrize(
    ("program", "answers"), [("sleep 60 & cat", 1), ("exec 1>&- 2>&-; sleep 60", 0)]
)
def test_commands_that_do_not_end(program: str, answers: int) -> None:
    timeout = scaled(0.5)
    command = Command(["sh", "-c", program], "fp16", c=None, result="fp16", timeout=timeout)
    ones = np.ones((1, 1), np.float32)
    with pytest.raises(RuntimeError) as raised:
        command(ones, ones)
    said = f"has not ended after {timeout:g} s; it gave {answers} of 1 answers"
    assert said in str(raised.value)


def test_a_failing_command_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "--k", "4", "--", "false"]) == 1
    assert capsys.readouterr().err == (
        "cpd probe: error: 'false' ended with status 1 after 0 of 64 answers\n"
    )


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        (lambda a, b, c: np.zeros(len(a)), "no power of two passes unchanged as a product next to"),
        (
            lambda a, b, c: np.abs(a * b).sum(axis=1) + np.abs(c),
            "whatever their signs: a sum keeps",
        ),
    ],
)
def test_orders_that_cannot_be_seen(sums: Any, said: str) -> None:
    assert said in probe(sums, "fp16", k=4).order
