# SPDX-License-Identifier: Apache-2.0
"""Tests that the example programs and notebooks run, with small trainings.

Invalid arguments must be reported.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import json
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import forked
from lost_before import free_port
from patience import scaled

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "examples"
sys.path.append(str(ROOT / "tests/testing"))
notebook = importlib.import_module("notebook")
TINY = ["--width", 16, "--steps", 2, "--batch", 2, "--context", 8]


def module_of(name: str) -> Any:
    """Returns an example, freshly imported as a module."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(name: str, *arguments: object) -> Any:
    """Returns the result of an example's `main`, called in this process."""
    return module_of(name).main([str(each) for each in arguments])


def refuses(capsys: pytest.CaptureFixture[str], text: str, name: str, *arguments: object) -> None:
    """Asserts that the example ends with an error whose message holds `text`."""
    with pytest.raises(SystemExit) as raised:
        main(name, *arguments)
    assert raised.value.code != 0
    assert text in capsys.readouterr().err + str(raised.value)


CLASSES = np.arange(10).repeat(2)


def pickled(folder: Path) -> None:
    """Writes images in the published form of CIFAR-10, 20 in each file.

    All pixels of an image have one value, the image's number.
    """
    made = folder / "cifar-10-batches-py"
    made.mkdir()
    for number, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]):
        values = (np.arange(20) + 20 * number).astype(np.uint8)[:, None].repeat(3072, axis=1)
        content = {b"data": values, b"labels": CLASSES.tolist()}
        (made / name).write_bytes(pickle.dumps(content))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Returns a folder with a few images of noise in the form of CIFAR-10."""
    image = pytest.importorskip("PIL.Image")
    draw = np.random.default_rng(0)
    stored = {}
    for name, count in (("train", 64), ("test", 32)):
        files = []
        for _ in range(count):
            file = io.BytesIO()
            image.fromarray(draw.integers(256, size=(32, 32, 3), dtype=np.uint8)).save(file, "JPEG")
            files.append(file.getvalue())
        stored[f"{name}_jpeg"] = np.frombuffer(b"".join(files), np.uint8)
        stored[f"{name}_offset"] = np.cumsum([0, *map(len, files)], dtype=np.uint32)
        stored[f"{name}_label"] = draw.integers(10, size=count, dtype=np.uint8)
    np.savez(tmp_path / "cifar10-jpeg.npz", **stored)
    return tmp_path


def test_convert(capsys: pytest.CaptureFixture[str]) -> None:
    main("10_convert", "--recipe", "nvfp4", "--keep", "output", "--width", 32, "--epochs", 1)
    said = capsys.readouterr().out
    assert "Linear  × 1  output  left in torch by the rule 'output'" in said
    assert "restored: " in said
    refuses(capsys, "unknown recipe 'nvpf4'", "10_convert", "--recipe", "nvpf4")
    refuses(capsys, "no module of the model matches", "10_convert", "--keep", "nowhere")


def test_cifar10(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--images", 64, "--tests", 32, "--width", 2, "--batch", 4, "--epochs", 1]
    wires = ["--wires", "fp32", "(3,0)", "(3,0) aps"]
    main("11_cifar10", "--data", images, *sizes, "--model", "davidnet", *wires, "--seeds", 2)
    said = capsys.readouterr().out
    assert said.startswith("CIFAR-10 (JPEG), 64 images, 8 nodes × 4\n")
    assert "| davidnet | (3,0) | 10.0 | 10.0 … 10.0 | " in said  # gradients beyond its largest
    assert said.count("| davidnet | ") == 3


def test_cifar10_refuses(images: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refuses(capsys, "by $CPD_DATA", "11_cifar10", "--data", images / "nowhere")
    refuses(capsys, "there are 64 images in train, got 100", "11_cifar10", "--data", images,
            "--images", 100, "--batch", 4)  # fmt: skip
    refuses(capsys, "unknown format 'e4n3'", "11_cifar10", "--data", images, "--wires", "e4n3")
    refuses(capsys, "take more than 64 images", "11_cifar10", "--data", images, "--images", 64)


@pytest.mark.parametrize("augment", ["none", "shift", "cutout", "crop24"])
def test_images_have_their_channels_first_in_memory(images: Path, augment: str) -> None:
    from cpd_lab.train.images import AUGMENTS, load_cifar10

    found = load_cifar10(images, 64, 32)
    change = AUGMENTS[augment]
    train_x = change(found.train_x, torch.Generator()) if change else found.train_x[[3, 1, 2]]
    for one in (found.train_x, found.test_x, train_x):
        assert one.is_contiguous()
        assert one.shape[1] == 3


def test_cifar10_as_published(tmp_path: Path) -> None:
    from cpd_lab.train.images import load_cifar10

    pickled(tmp_path)
    found = load_cifar10(tmp_path, 100, 10)
    assert found.source == "CIFAR-10"
    assert found.train_x.shape == (100, 3, 32, 32)
    assert found.test_y.tolist() == CLASSES[:10].tolist()
    numbers = torch.arange(110.0)
    expected = (numbers - numbers[:100].mean()) / found.train_x.numel()  # but for a factor
    both = torch.cat([found.train_x, found.test_x])[:, 0, 0, 0]
    torch.testing.assert_close(both / both[0], expected / expected[0])


def test_augmented_images_are_moved_and_mirrored() -> None:
    from cpd_lab.train.images import augmented

    images = torch.arange(1.0, 64 * 3 * 32 * 32 + 1).reshape(64, 3, 32, 32)
    made = augmented(images, torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4))
    for image, given in zip(made, padded, strict=True):
        moved = [
            window.flip(2) if mirrored else window
            for down in range(9)
            for right in range(9)
            for window in [given[:, down : down + 32, right : right + 32]]
            for mirrored in (False, True)
        ]
        assert any(torch.equal(image, each) for each in moved)


def test_text() -> None:
    from cpd_lab.train.text import load_text

    text = load_text()
    assert len(text.train) + len(text.test) > 300_000
    assert int(text.train.max()) < len(text.characters)
    one, again = (list(text.batches(3, 4, 8, seed=1)) for _ in range(2))
    assert torch.equal(torch.stack(one), torch.stack(again))
    assert one[0].shape == (4, 9)
    assert text.tests(5, 8)[-1].tolist() == text.test[-9:].tolist()


def test_gpt(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "gpt.png"
    main("12_gpt", *TINY, "--depth", 1, "--picture", picture)
    assert capsys.readouterr().out.count("\n| ") == 8
    assert picture.stat().st_size > 10_000
    refuses(capsys, "no case contains 'x9'", "12_gpt", "--only", "x9")
    refuses(capsys, "4 heads do not divide the width 6", "12_gpt", "--width", 6)


def test_lstm(capsys: pytest.CaptureFixture[str]) -> None:
    main("13_lstm", *TINY, "--layers", 1)
    assert capsys.readouterr().out.count("\n| ") == 5
    refuses(capsys, "unknown recipe 'nvpf4'", "13_lstm", "--recipes", "nvpf4")


def test_ddp_codec(capfd: pytest.CaptureFixture[str]) -> None:
    if not (torch.distributed.is_available() and torch.distributed.is_gloo_available()):
        pytest.skip("torch has no gloo")
    main("16_ddp_codec", "--epochs", 1, "--wires", "one_bit")
    [row] = [line.split() for line in capfd.readouterr().out.splitlines()[2:]]
    assert row[-1] == row[-2]  # the weights of ranks and of virtual nodes
    assert (row[0], row[-4]) == ("one_bit", "3,900")


def test_diloco(capsys: pytest.CaptureFixture[str]) -> None:
    main("17_diloco", "--workers", 2, "--inner", 10, "--epochs", 1)
    rows = capsys.readouterr().out.splitlines()[2:]
    sent = [int(row.split()[-2].replace(",", "")) for row in rows]
    assert len(sent) == 5
    assert sent[0] >= 10 * sent[1]
    assert sent[1] >= 7.9 * sent[2]


def test_diloco_of_64_workers_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    """With DiLoCo over 64 workers, outer gradients in four bits move the weights as in FP32.

    Contributions use the whole range of four bits. If the scale left room for sums of 64 workers in
    four bits, all outer gradients would become zero and the weights would not move.
    """
    example, moved = module_of("17_diloco"), {}

    def show(name: str, digits: Any, model: Any, *_: Any) -> None:
        start = example.digit_classifier(3, 64, seed=0)
        pairs = zip(model.parameters(), start.parameters(), strict=True)
        moved[name] = torch.cat([(now - then).flatten() for now, then in pairs]).detach()

    monkeypatch.setattr(example, "show", show)
    example.main(["--workers", "64", "--inner", "2", "--epochs", "4"])
    wide = moved["outer gradients, FP32"]
    assert wide.norm() > 0.1
    apart = {
        name: ((one - wide).norm() / wide.norm()).item()
        for name, one in moved.items()
        if name.startswith("outer gradients, ")
    }
    assert len(apart) == 4
    assert apart["outer gradients, (3,0) + APS"] < 0.35, apart
    assert apart["outer gradients, mxfp4, sums in bf16"] < 0.35, apart
    assert apart["outer gradients, (3,0) + APS, sums in (4,3)"] < 0.7, apart


def test_top_k(capsys: pytest.CaptureFixture[str]) -> None:
    main("18_top_k", "--epochs", 1, "--depth", 1, "--fractions", 0.01)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) == 4
    assert float(rows[3][-2]) < float(rows[2][-2]) < 1


def test_qsvrg(capsys: pytest.CaptureFixture[str]) -> None:
    main("19_qsvrg", "--epochs", 3)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:]]
    assert [int(row[0]) for row in rows] == [1, 2, 3]
    assert float(rows[2][1]) < 0.1
    assert all(float(row[3]) <= float(row[4]) for row in rows)
    with pytest.raises(SystemExit, match="the theorem does not hold here"):
        main("19_qsvrg", "--epochs", 1, "--steps", 1)


def test_probe(capsys: pytest.CaptureFixture[str]) -> None:
    main("25_probe", "--k", 16)
    told = [part.split("\n") for part in capsys.readouterr().out.split("--- ")[1:]]
    assert [lines[0].split(":")[0] for lines in told] == [
        "numpy.dot", "numpy.sum", "a unit", "a command",
    ]  # fmt: skip
    assert told[2][1] == "order      [c 0…15]"
    assert told[3][2] == "rule       fp32 sequential"


def test_choose_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    best = main("21_choose_format")
    said = capsys.readouterr().out
    assert int(best.bits) == 6
    assert f"least error: {best}" in said
    assert said.count("\n*") > 3  # the front
    np.save(tmp_path / "x.npy", np.ones((2, 4), np.float32))
    assert main("21_choose_format", tmp_path / "x.npy").relative_rms == 0


def installed(*packages: str) -> None:
    for package in packages:
        pytest.importorskip(package)


def test_accelerate(capsys: pytest.CaptureFixture[str]) -> None:
    installed("transformers", "accelerate", "matplotlib")
    assert main("15_hugging_face", "--steps", 2) == 0
    said = capsys.readouterr().out
    assert "gradient   nvfp4" in said
    assert "drawn: " in said


def test_hugging_faces_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    installed("transformers", "accelerate")
    assert main("28_trainer", "--steps", 2) == 0
    said = capsys.readouterr().out
    assert "coverage 49.2%" in said
    assert "step   1  gradients by own: " in said


def test_lightning(capsys: pytest.CaptureFixture[str]) -> None:
    installed("lightning")
    assert main("29_lightning", "--epochs", 1) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said if "by nvfp4" in line] == ["step 1", "step 21"]


def test_tensorboard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed("tensorboard")
    assert main("30_tensorboard", "--epochs", 1, "--out", tmp_path) == 0
    assert "coverage 100.0%, of which mxfp8 100.0%" in capsys.readouterr().out
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path))
    events.Reload()
    tags = events.Tags()["scalars"]
    assert {"coverage/share", "reduce/bytes", "reduce/output.weight/zeros"} <= set(tags)
    assert [one.step for one in events.Scalars("reduce/seconds")] == list(range(11))


def test_wandb(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    installed("wandb")
    assert main("31_wandb", "--epochs", 1, "--out", tmp_path) == 0
    said = capsys.readouterr().out
    assert "hidden2/gradient/nvfp4/sqnr " in said
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1


def run_notebook(name: str, within: float | None) -> dict[str, Any]:
    """Runs a notebook and returns the names that its cells define.

    The outputs must equal the stored outputs. Numbers may differ by the relative tolerance
    `within`, or arbitrarily if it is None (for results of torch's kernels).
    """
    stored = json.loads((FOLDER / name).read_text())
    found, names = notebook.run(FOLDER / name)
    assert notebook.words(found) == notebook.words(stored)
    if within is not None:
        assert notebook.numbers(found) == pytest.approx(notebook.numbers(stored), rel=within)
    return names


def test_notebook_of_hardware() -> None:
    names = run_notebook("26_hardware.ipynb", 0.02)
    assert names["raised"].tolist() == [0, 5, 3, 0]
    unit = names["rule"].accumulator
    assert (unit.block, unit.fraction_bits, str(unit.sum)) == (16, 13, "e8m13")
    assert names["best"].value("dot_error") < 0.05


@pytest.mark.slow("a notebook as its reader runs it: three trainings and every recipe observed")
def test_notebook() -> None:
    names = run_notebook("14_model.ipynb", None)
    assert min(names["accuracies"].values()) > 0.85
    assert type(names["model"][0]) is torch.nn.Linear


def which_collective(world: int, *words: str) -> list[str]:
    """Runs the example on `world` ranks, with the environment that torchrun sets. Returns the
    printed lines that state a range of values and its order of ranks."""
    place = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        forked.Program(
            [FOLDER / "32_which_collective.py", *words],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=forked.PIPE,
            stderr=forked.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    told = [rank.communicate(timeout=scaled(120)) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * world, told
    return [line for out, _ in told for line in out.splitlines() if line.startswith("values")]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_which_collective(dtype: str) -> None:
    """The example reports that gloo adds in a ring.

    Slice s is added from rank s - 1 down to rank s; the order of the first two ranks does not
    matter.
    """
    lines = which_collective(4, "--dtype", dtype, "--values", "4096")
    orders = ("2 + 3 + 1 + 0", "0 + 3 + 2 + 1", "0 + 1 + 3 + 2", "1 + 2 + 0 + 3")
    assert len(lines) == 4
    for line, order in zip(lines, orders, strict=True):
        assert line.endswith(f": {order}; cpd.simulate_all_reduce gives the same bits")


def test_which_collective_between_slices() -> None:
    """The ranks' order changes from slice to slice of the values. If a chunk has parts of two
    slices, the example divides it where the order changes."""
    lines = which_collective(3, "--values", "9000")
    assert [line.split(": ")[1].split(";")[0] for line in lines] == [
        "1 + 2 + 0",
        "0 + 2 + 1",
        "0 + 1 + 2",
    ]
    assert all(line.endswith("simulate_all_reduce gives the same bits") for line in lines)
    starts = [int(line.split()[1].replace(",", "")) for line in lines]
    assert starts == pytest.approx([0, 3000, 6000], abs=30)


def test_every_example_is_listed() -> None:
    listed = (FOLDER / "README.md").read_text()
    paths = sorted(FOLDER.glob("[0-9][0-9]_*"))
    assert len(paths) > 20
    for path in paths:
        assert path.name in listed
        if path.suffix == ".py":
            command = rf"^Run: (?:python|torchrun --nproc-per-node \d) examples/{path.name}\b"
            assert re.search(command, path.read_text(), re.MULTILINE), path.name
