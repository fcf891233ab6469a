# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd replay` and `cpd.hardware.replay`, and what both report about a file of dot
products."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd
from cpd.cli import main
from cpd.hardware import replay

U32 = npt.NDArray[np.uint32]

_ROOT = Path(__file__).resolve().parents[3]
_VECTORS = Path(os.environ.get("CPD_DATA", _ROOT.parent / "shared" / "data")) / "tensor-core"


def _archive(path: Path, preset: str, kind: str = "fp16", output: str = "fp32") -> dict[str, U32]:
    """Writes an archive of 60 dot products that a preset computes. Each has two blocks of
    products."""
    acc = cpd.Accumulator(output, scheme=preset)
    assert acc.form == "unit"
    rng = np.random.default_rng(3)
    shape = 60, 2 * max(acc.block, acc.group)
    a, b, c = (
        cpd.cast(np.ldexp(rng.standard_normal(n), rng.integers(-4, 4, n)).astype(np.float32), f)
        for n, f in ((shape, acc.a), (shape, acc.b), ((60, 1), acc.format))
    )
    d = cpd.gemm(a[:, None, :], b[:, :, None], acc, c[:, :, None])[:, :, 0]
    names = (f"{kind}_a", f"{kind}_b", f"{kind}_c", f"{kind}_d_{output}")
    arrays = {name: x.view(np.uint32) for name, x in zip(names, (a, b, c, d), strict=True)}
    np.savez(path, **arrays)  # type: ignore[arg-type]
    return arrays


@pytest.mark.parametrize(
    ("name", "preset", "kind", "output"),
    [
        ("V100", "v100", "fp16", "fp32"),
        ("A2", "a100-bf16", "bf16", "fp32"),
        ("H200", "h100-tf32", "tf32", "fp32"),
        ("L40S-some", "ada-fp8", "E4M3", "fp16"),
        ("H100", "hopper-mma-fp8", "E4M3", "fp16"),
        ("B200-fp8", "b200-fp8", "E4M3", "fp32"),
    ],
)
def test_the_unit_is_the_files(
    tmp_path: Path, name: str, preset: str, kind: str, output: str
) -> None:
    path = tmp_path / f"{name}.npz"
    _archive(path, preset, kind, output)
    (row,) = replay(path, mutations=True)
    assert row.accumulator == cpd.Accumulator(output, scheme=preset)
    assert (row.name, row.matches, row.total, row.first) == (f"{kind} {output}", 60, 60, ())
    assert row.adds_c
    assert any(row.mutations.values())
    other = "toward_zero" if output == "fp16" else "nearest_even"
    assert {"F - 1", "F + 1", "half the block", other} <= set(row.mutations)
    assert ("k ascending" in row.mutations) == (preset == "hopper-mma-fp8")


def test_mismatches_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "H100.npz"
    arrays = _archive(path, "h100-fp16")
    d = arrays["fp16_d_fp32"].copy()
    d[7:14] ^= 1
    d[20] = 0x7FFFFFFF
    arrays["fp16_a"][20, 0] = 0x7FC00000  # NaN matches NaN
    np.savez(path, **(arrays | {"fp16_d_fp32": d}))  # type: ignore[arg-type]
    (row,) = replay(path)
    assert (row.matches, row.total) == (53, 60)
    assert [number for number, *_ in row.first] == [7, 8, 9, 10, 11]
    assert np.float32(row.first[0][1]).view(np.uint32) == d[7, 0]
    assert main(["replay", str(path)]) == 1
    shown = capsys.readouterr().out
    assert "fp16 fp32, number 7: published" in shown
    assert main(["replay", str(path), "--json", "-", "--mutations"]) == 1
    (told,) = json.loads(capsys.readouterr().out)
    assert told["matches"] == 53
    assert told["accumulator"] == str(cpd.Accumulator("h100-fp16"))
    assert set(told["mutations"]) == set(replay(path, mutations=True)[0].mutations)


def test_any_accumulator_and_chosen_sets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        **_archive(path, "b200-fp8", "E4M3", "fp16"),  # type: ignore[arg-type]
        **_archive(path, "cdna1-fp16"),  # type: ignore[arg-type]
    )
    with pytest.raises(ValueError, match="no unit is known for E4M3 fp16"):
        replay(path)
    (row,) = replay(path, "hopper-mma-fp8", operands="e4m3fn")
    assert (row.matches, row.total) == (60, 60)
    (row,) = replay(path, "cdna1-fp16", operands="fp16", mutations=True)
    assert row.matches == 60
    assert not {"F - 1", "F + 1"} & set(row.mutations)  # an exact adder has no F
    (row,) = replay(
        path, "fp32 block_fma a=fp16 b=fp16 block=4 adder=exact sum_rounding=nearest_even"
    )
    assert (row.name, row.matches) == ("fp16 fp32", 60)
    (row,) = replay(path, "fp32 fma", result="fp32")
    assert 0 < row.matches < 60
    (row,) = replay(path, "cdna1-fp16", result="fp32", adds_c=False)
    assert row.matches < 60
    command = [
        "replay",
        str(path),
        "--accumulator",
        "b200-fp8",
        "--operands",
        "E4M3",
        "--result",
        "fp16",
    ]
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, "--no-c"]) == 1
    assert "E4M3 fp16, without c" in capsys.readouterr().out
    with pytest.raises(ValueError, match="no dot products of E5M2"):
        replay(path, operands="E5M2")


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "H100.npz"
    arrays = _archive(path, "h100-fp16")

    def refused(match: str, changed: dict[str, Any]) -> None:
        kept = {name: x for name, x in (arrays | changed).items() if x is not None}
        np.savez(path, **kept)
        with pytest.raises(ValueError, match=match):
            replay(path)

    refused("lacks fp16_c", {"fp16_c": None})
    refused("fp16_b must be n x k of uint32, got 2-d float32", {"fp16_b": np.ones((60, 8), "f4")})
    refused("fp16's arrays must be n x k and n x 1, got", {"fp16_c": np.ones((59, 1), np.uint32)})
    refused("not a .npz archive of arrays", {"fp16_a": np.array([[object()]])})
    refused("no dot products", {"fp16_d_fp32": None})
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(ValueError, match=r"not a \.npz archive of arrays"):
        replay(path)
    path.write_bytes(b"")
    assert main(["replay", str(path)]) == 2
    assert main(["replay", str(tmp_path / "none.npz")]) == 2
    assert main(["replay", str(path), "--accumulator", "no-such-unit"]) == 2
    assert "cpd replay: error: " in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_vectors_of_cpd(tmp_path: Path, kind: str) -> None:
    from cpd.hardware import make_vectors

    acc = cpd.Accumulator("h100-fp16")
    path = tmp_path / f"unit.{kind}"
    made = make_vectors("block_fma", "fp16", accumulator=acc, length=20, random=200, seed=1)
    made.write(path, kind)
    (row,) = replay(path, mutations=True)
    assert row.accumulator == acc
    assert row.matches == row.total >= 200
    assert row.mutations["F - 1"] > 0
    (row,) = replay(path, "fp32 fma")
    assert row.matches < row.total
    make_vectors("add", "e2m1").write(path, kind)
    with pytest.raises(ValueError, match=r"sums of products a \* b \+ c, without scales or draws"):
        replay(path)
    wide = cpd.Accumulator("fixed<40,12>")
    make_vectors("dot", "e4m3fn", accumulator=wide, length=2, random=99).write(path, kind)
    with pytest.raises(ValueError, match="takes c from binary32, which has not all of these"):
        replay(path)


@pytest.mark.skipif(
    not (_VECTORS / "H100.npz").exists(),
    reason=f"no tensor-core vectors at {_VECTORS} (CPD_DATA names the data folder)",
)
def test_all_published_files(capsys: pytest.CaptureFixture[str]) -> None:
    total = 0
    for name in ("V100", "H100", "Ada-fp8", "B200-fp8"):
        for row in replay(_VECTORS / f"{name}.npz"):
            assert row.matches == row.total, row.name
            assert row.adds_c != (name == "H100" and row.name in ("E4M3 fp32", "E5M2 fp32"))
            total += row.total
    assert total == 70_000
    assert main(["replay", str(_VECTORS / "Ada-fp8.npz"), "--mutations"]) == 0
    assert "E4M3 fp32, of 2500 differ: F - 1 " in capsys.readouterr().out
