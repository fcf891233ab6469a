# SPDX-License-Identifier: Apache-2.0
"""Tests files of vectors: written files can be read back, foreign files are checked, and errors
name the line."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.hardware import Vectors, check_vectors, make_vectors
from cpd.hardware.vectors import vectors
from cpd.hardware.vectors.checking import checked_lines, rule_by_name
from cpd.hardware.vectors.fields import Field
from cpd.hardware.vectors.files import File
from cpd.hardware.vectors.files import File as Lines
from cpd.hardware.vectors.lines import KINDS, columns_of, lines_of
from cpd.numeric.shown import byte_size

SUFFIXES = {"testfloat": "tv", "readmemh": "hex", "csv": "csv", "jsonl": "jsonl"}


def examples() -> list[Vectors]:
    return [
        make_vectors("mul", "e4m3fn"),
        make_vectors("cast", ["tf32", "e2m3"], rounding="stochastic", random_bits=7, random=500),
        make_vectors("dot", "e2m3", accumulator="e4m3 kahan", length=5, random=100),
        make_vectors("block_fma", accumulator="h100-fp8", random=60),
        make_vectors("mma", accumulator="rtx-blackwell-nvfp4", random=40),
    ]


# ---- what is written is read --------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(kind: str, tmp_path: Path) -> None:
    for number, made in enumerate(examples()):
        path = made.write(tmp_path / f"{number}.{SUFFIXES[kind]}")
        file = File(path)
        assert file.fields == made.rule.fields
        assert made.fields == tuple(tuple(field) for field in file.fields)
        assert file.head == json.loads(json.dumps(made.head))
        read, given = list(file.batches()), list(made.batches())
        for name in given[0]:
            there = np.concatenate([b[name] for b in read])
            np.testing.assert_array_equal(there, np.concatenate([b[name] for b in given]))
        found = check_vectors(path)
        assert (found.lines, found.wrong, found.other_nans) == (made.count, 0, 0)
        assert found.coverage == made.coverage


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "field",
    [
        *(Field("a", bits) for bits in (1, 5, 8, 13, 16, 29, 32, 33, 63, 64)),
        *(Field("a", bits, 5) for bits in (15, 20, 30, 35, 45, 315, 320)),
        Field("a", 24, 3),
    ],
)
def test_digits_are_those_of_the_numbers(kind: str, field: Field) -> None:
    generator = np.random.default_rng(1)
    shape = (50,) if field.count == 1 else (50, field.count)
    values = generator.integers(0, 1 << field.width, shape, dtype=np.uint64, endpoint=False)
    block = lines_of(kind, [field], {"a": values})
    before, after = {"jsonl": ('{"a":"', '"}')}.get(kind, ("", ""))
    for row, line in zip(values, block.decode().splitlines(), strict=True):
        elements = np.atleast_1d(row)
        number = sum(int(x) << field.width * i for i, x in enumerate(elements))
        assert line == f"{before}{number:0{field.digits}X}{after}"
    for dtype in (np.uint8, np.uint16, np.uint32):
        if field.width <= np.iinfo(dtype).bits:
            assert lines_of(kind, [field], {"a": values.astype(dtype)}) == block
    read = columns_of(kind, [field], block)
    assert read is not None
    np.testing.assert_array_equal(read["a"], values)


def test_many_batches_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Test vectors are written in batches, directly to their file, without a temporary file. The
    file's head has the number of lines. `on_batch` gets the lines so far after each batch."""
    made = make_vectors("mul", "bf16", directed=True, random=300_000)  # four batches and more
    seen: list[int] = []
    made.on_batch = seen.append
    monkeypatch.setattr(vectors.tempfile, "TemporaryFile", None)
    path = made.write(tmp_path / "lines.tv")
    head, *lines = path.read_text().splitlines()
    assert len(lines) == json.loads(head[1:])["count"] == made.count == seen[-1]
    assert seen == sorted(seen)
    assert len(seen) > 4
    assert [file.name for file in tmp_path.iterdir()] == ["lines.tv"]


def test_what_the_disk_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that exceeds the free disk space is refused before any line is computed. Here 2^32
    lines have 8 + 1 + 2 + 1 + 2 + 1 bytes each."""
    made = make_vectors("cast", ["fp32", "e4m3fn"], exhaustive=True)
    assert made.size("testfloat") == (1 << 32, 15 << 32)
    free = shutil.disk_usage(tmp_path)._replace(free=(15 << 32) - 1)
    monkeypatch.setattr(vectors.shutil, "disk_usage", lambda _: free)
    monkeypatch.setattr(made, "batches", lambda: pytest.fail("a line was computed"))
    with pytest.raises(OSError, match=r"4,294,967,296 lines need 64.4 GB, and .* 64.4 GB free"):
        made.write(tmp_path / "x.tv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1 kB"),
        (999_499, "999 kB"),
        (999_500, "1 MB"),
        (1_234_567, "1.23 MB"),
        (15 << 32, "64.4 GB"),
        (10**15, "1 PB"),
    ],
)
def test_a_number_of_bytes(number: int, text: str) -> None:
    assert byte_size(number) == text


def test_testfloat_lines(tmp_path: Path) -> None:
    path = make_vectors("mul", "e4m3").write(tmp_path)
    assert path.name == "e4m3_mul_rne.tv"
    head, first, *rest = path.read_text().splitlines()
    assert head.startswith('# {"cpd": ')
    assert (first, rest[0x3939 - 1], len(rest)) == ("00 00 00 00", "39 39 3A 01", 65535)
    names = {
        make_vectors("cast", ["fp16", "e4m3fn"], rounding="toward_zero"): "fp16_e4m3fn_cast_rtz.tv",
        make_vectors("add", "e4m3:bias=3"): "e4m3-bias3_add_rne.tv",
        make_vectors("dot", "e5m2", accumulator="h100-fp8 a=e5m2 b=e5m2"): None,
    }
    for made, name in names.items():
        assert name is None or made.name("testfloat") == name


def test_a_word_is_a_struct(tmp_path: Path) -> None:
    made = make_vectors("cast", ["fp16", "e2m3"], rounding="stochastic", random_bits=5, random=10)
    path = made.write(tmp_path, "readmemh")
    word = path.read_text().splitlines()[1]
    assert [len(part) for part in word.split("_")] == [4, 2, 2, 2]
    package = (tmp_path / "fp16_e2m3_cast_sr_pkg.sv").read_text()
    members = [line.split() for line in package.splitlines() if line.startswith("    logic")]
    assert [member[-1].rstrip(";") for member in members] == [
        *("a", "r_pad", "r", "result_pad", "result", "flags_pad", "flags")
    ]
    assert "localparam int COUNT = 10;" in package
    assert "localparam int BITS = 40;" in package


def test_files_are_overwritten_and_stdout_is_a_dash(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    path = tmp_path / "x.jsonl"
    for n in (50, 5):
        make_vectors("add", "fp16", random=n).write(path)
    assert len(path.read_text().splitlines()) == 6
    make_vectors("add", "fp16", random=5).write("-", "jsonl")
    assert capfdbinary.readouterr().out == path.read_bytes()


# ---- files of others ----------------------------------------------------------------------------

RULE = make_vectors("mul", "e4m3").rule
FOREIGN = {
    "testfloat": "# any\n\n39 39 3a 01   // as it is\n3_9 00 0_0 0\r\n\t38 38 38 00\n",
    "readmemh": "/* a\n b */ 39393A01 // one\n39_00_00_00\r\n\n3838_3800\n",
    "csv": "# any\nflags, result,b,a\n01,3A,39,39\n00,00,00,39\n\n0,38,38,38\n",
    "jsonl": '{"a":"39","b":"39","result":"3a","flags":"1","note":[1]}\n\n'
    '{"b":"00","a":"39","flags":"00","result":"00"}\n'
    '{"a":"38","b":"38","result":"38","flags":"0"}',
}


@pytest.mark.parametrize("kind", KINDS)
def test_lines_of_others_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(FOREIGN[kind].encode())
    found = checked_lines(path, kind, RULE)
    assert (found.lines, found.wrong) == (3, 0)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "e4m3_mul_rne.tv"
    path.write_text("# any\n39 39 3B 01\n39 39 3A 00\n38 38 38 00\n7F 38 FC 00\n7F 00 00 00\n")
    found = check_vectors(path)
    assert (found.lines, found.wrong, found.other_nans) == (5, 3, 1)
    assert dict(found.wrong_in) == {"result": 2, "flags": 1}
    assert found.shown == [
        f"{path}:2: a=39 b=39: result is 3B, must be 3A",
        f"{path}:3: a=39 b=39: flags is -, must be NX",
        f"{path}:6: a=7F b=00: result is 00, must be 7C",
    ]


def test_a_wrong_signal_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    make_vectors("block_fma", accumulator="v100", random=30).write(path)
    lines = path.read_text().splitlines()
    object_ = json.loads(lines[4])
    object_["p_cut"] = f"{int(object_['p_cut'], 16) ^ 1:022X}"
    lines[4] = json.dumps(object_)
    path.write_text("\n".join(lines))
    found = check_vectors(path)
    assert (found.lines, found.wrong, dict(found.wrong_in)["p_cut"]) == (30, 1, 1)
    assert found.shown[0].startswith(f"{path}:5: a=")


@pytest.mark.parametrize(
    ("name", "operation", "mode"),
    [
        ("e4m3_mul_rne.tv", "mul", "nearest_even"),
        ("a/b/fp16_e4m3fn_cast_rtz.tv", "cast", "toward_zero"),
        ("e5m2_div_rdn.tv", "div", "down"),
        ("mul_rne.tv", None, None),
        ("e4m3_mod_rne.tv", None, None),
        ("e4m3_mul_xyz.tv", None, None),
        ("ezm3_mul_rne.tv", None, None),
    ],
)
def test_a_name_says_the_rule(name: str, operation: str | None, mode: str | None) -> None:
    rule = rule_by_name(name)
    assert (rule.operation if rule else None) == operation
    assert (rule.to.rounding if rule else None) == mode


# ---- bad files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "text", "line", "says"),
    [
        ("testfloat", "39 39 3A\n", 1, "3 fields where 4 are wanted: a b result flags"),
        ("testfloat", "39 39 3A 01\n39 39 3A 01 0\n", 2, "5 fields where 4"),
        (
            "testfloat",
            "39 39 3A 01\n\n# x\n39 3G 3A 01\n",
            4,
            "b must be hexadecimal digits, got '3G'",
        ),
        ("testfloat", "39 039 3A 01\n", 1, "b has 2 hexadecimal digits, got '039'"),
        ("testfloat", "39 39 3A 20\n", 1, "flags has 5 bits, got 20"),
        ("testfloat", "39 39 0x3A 01\n", 1, "hexadecimal"),
        ("testfloat", "39 -1 3A 01\n", 1, "hexadecimal"),
        ("testfloat", "39 39 3A ١\n", 1, "hexadecimal"),
        ("testfloat", "__ 39 3A 01\n", 1, "hexadecimal"),
        (
            "readmemh",
            "39393A01\n@10\n39393A01\n",
            2,
            "addresses .@. are not read: words must follow each",
        ),
        ("readmemh", "39393A01\n139393A01\n", 2, "a word of more than 8 digits"),
        ("readmemh", "3939xA01\n", 1, "hexadecimal"),
        ("readmemh", "39393A01 39393A01\n", 1, "hexadecimal"),
        ("csv", "a,b,result\n39,39,3A\n", 1, "columns must be a,b,result,flags"),
        ("csv", "a,b,result,flags\n39,39,3A\n", 2, "3 fields where 4"),
        ("csv", "a,b,result,flags\n39,39,3A,\n", 2, "flags must be hexadecimal"),
        ("jsonl", '{"a":"39","b":"39","result":"3A"}\n', 1, "field flags is missing"),
        (
            "jsonl",
            '{"a":57,"b":"39","result":"3A","flags":"01"}\n',
            1,
            "field a must be hexadecimal digits in quotes",
        ),
        ("jsonl", '{"a":"39",\n', 1, "not a JSON object"),
        ("jsonl", "[" * 100_000 + "\n", 1, "not a JSON object"),
        ("jsonl", "[1]\n", 1, "not a JSON object"),
        ("jsonl", '{"a":"__import__(\'os\')","b":"1","result":"1","flags":"0"}', 1, "digits"),
    ],
)
def test_a_bad_line_is_named(kind: str, text: str, line: int, says: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=says) as told:
        checked_lines(path, kind, RULE)
    assert str(told.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize("kind", KINDS)
def test_every_truncation_is_told(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"x.{SUFFIXES[kind]}"
    make_vectors("mul", "e4m3", random=6).write(path)
    whole = path.read_bytes()
    for end in [*range(0, len(whole) - 60, 17), *range(len(whole) - 60, len(whole) - 1)]:
        path.write_bytes(whole[:end])
        with pytest.raises(ValueError, match=path.name):
            check_vectors(path)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_told_or_harmless(kind: str, tmp_path: Path) -> None:
    """After any bit of a file is flipped, check_vectors raises no exception but ValueError, and
    reads no more lines than the three in the file."""
    path = tmp_path / f"x.{SUFFIXES[kind]}"
    make_vectors("mul", "e4m3", random=3).write(path)
    whole = bytearray(path.read_bytes())
    for place in range(0, len(whole), 7):
        broken = bytearray(whole)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        try:
            found = check_vectors(path)
        except ValueError:
            continue
        assert found.lines <= 3


@pytest.mark.parametrize("content", [b"", b"\n\n", b"# only\n", bytes(range(256)), b"\0" * 5000])
@pytest.mark.parametrize("kind", KINDS)
def test_no_lines_and_binary_files(kind: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "foreign"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"{path}:"):
        checked_lines(path, kind, RULE)


def test_a_huge_line_is_named_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "huge.tv"
    with path.open("wb") as file:
        file.write(b"39 39 3A 01\n")
        file.seek(1 << 33)  # a sparse file of 8 GiB of zeros
        file.write(b"\n")
    with pytest.raises(ValueError, match=r"huge\.tv:2: longer than 1048576 bytes"):
        checked_lines(path, None, RULE)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"operation": "mod"}, "operation must be"),
        ({"operation": ["mul"]}, "operation|unhashable"),
        ({"formats": "e4m3"}, ""),
        ({"formats": ["e4m3"] * 40}, "takes one format or 2"),
        ({"formats": 3}, ""),
        ({"rounding": None}, "rounding"),
        ({"nan_signals": 1}, "nan_signals must be true or false, got 1"),
        ({"result": "e99m1"}, "exp must be"),
        ({"count": 7}, "the head says 7 lines, found 4: truncated"),
        ({"count": "4"}, "the head says"),
    ],
)
def test_a_head_that_says_nonsense(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    make_vectors("mul", "e4m3", random=4).write(path)
    head, *lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(head) | change), *lines]))
    if says:
        with pytest.raises(ValueError, match=says):
            check_vectors(path)
    else:
        with contextlib.suppress(ValueError):
            check_vectors(path)


POSITIVE = "a field must have a name and positive numbers of bits, got "


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (None, "no head that says the fields of a line"),
        ([], "no head that says the fields of a line"),
        ([{"name": "a"}], "a field must be an object with name and bits, got {'name': 'a'}"),
        ([{"name": "a", "bits": -1}], POSITIVE),
        ([{"name": "a", "bits": 10**9}], POSITIVE),
        ([{"name": "a", "bits": 7, "count": 2}], POSITIVE),
        ([{"name": 1, "bits": 8}], POSITIVE),
        (["a"], "a field must be an object with name and bits$"),
        ([{"name": "a", "bits": 8}] * 2000, "no head that says the fields of a line"),
    ],
)
def test_fields_that_say_nonsense(fields: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"cpd": "1", "fields": fields}) + '\n{"a":"00"}\n')
    with pytest.raises(ValueError, match=f"{path}:1: {says}"):
        Lines(path)


# ---- the command --------------------------------------------------------------------------------


def test_the_command_writes_and_checks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["vectors", "mul", "e4m3fn", "--exhaustive"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("e4m3fn_mul_rne.tv: 65,536 lines, exhaustive\n")
    assert "tie                       4376" in told
    assert main(["vectors", "--check", "e4m3fn_mul_rne.tv"]) == 0
    assert "65,536 lines, 0 wrong" in capsys.readouterr().out
    text = Path("e4m3fn_mul_rne.tv").read_text()
    Path("e4m3fn_mul_rne.tv").write_text(text.replace("39 39 3A 01", "39 39 3A 00"))
    assert main(["vectors", "--check", "e4m3fn_mul_rne.tv"]) == 1
    assert "1 wrong (flags 1)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("lines", "status", "rule"),
    [
        (["0000 7C00 7E00 7E00 10"], 0, "raises NV, as RISC-V and TestFloat"),
        (["0000 7C00 7E00 7E00 00", "7C00 8000 7E00 7E00 00"], 0, "raises nothing"),
        (["0000 7C00 7E00 7E00 00", "7C00 8000 7E00 7E00 10"], 0, "raises NV in 1 of 2 lines"),
        (["0000 7C00 7E00 7E00 11"], 1, None),  # NX as well
        (["3C00 3C00 7E00 7E00 10"], 1, None),  # 1 * 1
        (["0000 7C00 7D00 7E00 00"], 1, None),  # a signaling NaN raises NV
        (["0000 7C00 3C00 7E00 00"], 1, None),  # 0 * ∞ + 1 raises NV
    ],
)
def test_both_rules_for_a_quiet_nan(
    lines: list[str],
    status: int,
    rule: str | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "f.tv"
    path.write_text("\n".join(lines) + "\n")
    assert main(["vectors", "fma", "fp16", "--check", str(path)]) == status
    told = " ".join(capsys.readouterr().out.split())
    assert ("fma(0, ∞, quiet NaN)" in told) == (rule is not None)
    assert rule is None or rule in told


@pytest.mark.parametrize(
    "words",
    [
        "vectors",
        "vectors mul",
        "vectors mul e4m3 --as jsonl -o no/such/x",
        "vectors mul e4m3 -o x.unknown",
        "vectors --check none.tv",
        "vectors mul e4m3 --rtl x.sv",
        "vectors dot e4m3",
    ],
)
def test_a_mistake_is_one_line(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("operation", "how"),
    [
        ("dot", {"formats": "int8", "accumulator": "e6m9", "length": 2}),
        ("dot", {"formats": "e4m3", "accumulator": "int32", "length": 2}),
        ("dot", {"formats": "e4m3", "accumulator": "fixed<20,3>", "length": 2}),
        ("cast", {"formats": ("e4m3", "int8")}),
    ],
)
def test_files_of_before_integers_were_twos_complement_are_refused(
    tmp_path: Path, operation: str, how: Any
) -> None:
    path = make_vectors(operation, random=20, **how).write(tmp_path / "old.tv")
    assert check_vectors(path).wrong == 0
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(f'"cpd": "{cpd.__version__}"', '"cpd": "0.6.0"'), encoding="utf-8")
    with pytest.raises(ValueError, match=r"tv:1: .* of CPD 0\.6\.0, in which int8 had sign"):
        check_vectors(path)
    plain = make_vectors("mul", "e4m3", random=20).write(tmp_path / "plain.tv")
    text = plain.read_text(encoding="utf-8").replace(cpd.__version__, "0.6.0")
    plain.write_text(text, encoding="utf-8")
    assert check_vectors(plain).wrong == 0
