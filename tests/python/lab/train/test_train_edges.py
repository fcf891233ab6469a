# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of training: torch's settings, which a training must restore, random choices,
and unusual options and data."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cpd_lab.train import images  # noqa: E402
from cpd_lab.train.batches import Batches  # noqa: E402
from cpd_lab.train.data import Data  # noqa: E402
from cpd_lab.train.loop import _Run, deterministic  # noqa: E402
from cpd_lab.train.models import cifarnet  # noqa: E402
from cpd_lab.train.options import TrainOptions, _words, check_data  # noqa: E402
from cpd_lab.train.result import TrainResult  # noqa: E402
from cpd_lab.train.text import load_text  # noqa: E402


def test_torch_is_as_it_was_after_a_training():
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    torch.set_num_threads(2)
    try:
        with deterministic():
            assert torch.get_num_threads() == 1
            assert torch.get_deterministic_debug_mode() == 2
        assert torch.get_num_threads() == 2
        assert torch.get_deterministic_debug_mode() == mode
    finally:
        torch.set_num_threads(threads)
        torch.set_deterministic_debug_mode(mode)


def test_every_place_is_cut_out_and_half_of_the_images_are_mirrored():
    """Random crops of 8 x 8 from 1000 images of 10 x 10 begin at every possible row and column: 0,
    1 or 2. Half of the images are mirrored."""
    draw = torch.Generator().manual_seed(1)
    made = images.cut_out(torch.ones(1000, 1, 10, 10), draw)
    rows = {int((image[0] == 0).any(1).nonzero()[0]) for image in made}
    columns = {int((image[0] == 0).any(0).nonzero()[0]) for image in made}
    assert rows == columns == {0, 1, 2}
    across = torch.arange(24.0).expand(1000, 1, 24, 24)
    shown = images.cropped(torch.arange(28.0).expand(1000, 1, 28, 28), draw)
    rising = int((shown[:, 0, 0, 1] > shown[:, 0, 0, 0]).sum())
    assert shown.shape == across.shape
    assert 400 < rising < 600


def data(count):
    x = torch.arange(float(count)).reshape(count, 1)
    return Data(x, torch.zeros(count, dtype=torch.int64), x, x, "test", 10)


def test_every_epoch_shuffles_anew():
    options = SimpleNamespace(nodes=2, batch=3, augment="none", seed=5, data="cifar10")
    batches = Batches(options, data(20), range(2))
    assert (batches.steps, batches.left_out) == (3, 2)
    epochs = []
    for epoch in (1, 2):
        steps = list(batches.epoch(epoch))
        seen = torch.cat([x.flatten() for step in steps for x, _ in step])
        assert len(seen) == len(seen.unique()) == 18
        epochs.append(seen)
    assert not torch.equal(*epochs)
    for seen in epochs:
        assert not torch.equal(seen, seen.sort().values)


def test_a_ranks_weights_are_compared():
    model = torch.nn.Linear(2, 2)

    def equal(*others):
        ranks = SimpleNamespace(mine=range(1), world=2)
        ranks.gather_bytes = lambda rows: [*rows, *others]
        return _Run._equal_weights(SimpleNamespace(model=model, ranks=ranks))

    weights = equal()
    assert equal(int(weights, 16).to_bytes(8, "little")) == weights
    with pytest.raises(Exception, match="those of rank 1 are 00000000000000ff"):
        equal((255).to_bytes(8, "little"))


def test_bits_of_a_layer_are_counted_at_every_step():
    names = ("underflowed", "overflowed", "non_finite", "zeros", "bytes")
    report = SimpleNamespace(**dict.fromkeys(names, 1), bits=(6, 7, 6))
    counts = SimpleNamespace(**dict.fromkeys(names, 0), name="a", values=0, bits={})
    training = SimpleNamespace(
        layers=[counts], parameters=[torch.zeros(3)], nodes=SimpleNamespace(report={"a": report}),
        ranks=SimpleNamespace(world=4),
    )  # fmt: skip
    for _ in range(2):
        _Run._count(training)
    assert counts.bits == {6: 4, 7: 2}
    assert (counts.values, counts.underflowed, counts.bytes) == (2 * 4 * 3, 2, 2)


def test_a_schedule_divides_the_rate_by_the_sum_of_losses():
    rates = SimpleNamespace(at=lambda progress, epochs: 0.5)
    options = SimpleNamespace(schedule="linear", lr=0.8, rates=rates, epochs=4, loss_sum=4)
    group = {"lr": 1.0}
    training = SimpleNamespace(
        options=options, batches=SimpleNamespace(steps=10), has_phases=False,
        optimizer=SimpleNamespace(param_groups=[group]),
    )  # fmt: skip
    _Run._set_step(training, 1, 0)
    assert group["lr"] == pytest.approx(0.8 * 0.5 / 4)


@pytest.mark.parametrize("side", [7, 8, 9, 10, 24])
def test_images_of_odd_sides_fit(side):
    assert cifarnet(side, width=2)(torch.zeros(1, 3, side, side)).shape == (1, 10)


def test_a_tenth_of_the_text_is_held_out():
    text = load_text()
    whole = len(text.train) + len(text.test)
    assert len(text.train) > 5 * len(text.test) > 0
    assert len(text.test) == whole - len(text.train)


def test_a_step_may_take_all_images():
    check_data(4, 5, 20)
    with pytest.raises(ValueError, match="nodes × batch must be at most 20"):
        check_data(3, 7, 20)


@pytest.mark.parametrize(
    ("value", "word"), [(1.5, "1.5"), (2.0, "2"), (0.1, "0.1"), (1e-3, "0.001"), (12.25, "12.25")]
)
def test_numbers_are_written_as_they_are(value, word):
    assert _words("lr", value) == ["--lr", word]


def test_the_cost_of_a_step_is_that_after_the_first_epochs():
    """A result reports the cost of a step after the first `fp32_epochs` epochs. In those epochs,
    gradients are sent in fp32, which costs more."""
    costs = []
    for fp32_epochs in (0, 2):
        options = TrainOptions(format="e4m3", fp32_epochs=fp32_epochs, nodes=4, batch=8)
        costs.append(TrainResult.cost.func(SimpleNamespace(options=options)).bytes_sent)
    assert costs[0] == costs[1]
    first = TrainOptions(format="fp32", nodes=4, batch=8)
    assert TrainResult.cost.func(SimpleNamespace(options=first)).bytes_sent > 2 * costs[0]


def test_each_image_is_decoded_from_its_own_bytes():
    """Each image is decoded from its own bytes. The test stores images as PNG, which is lossless
    and which Pillow also reads."""
    pillow = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    files = [io.BytesIO() for _ in pixels]
    for image, file in zip(pixels, files, strict=True):
        pillow.fromarray(image).save(file, "PNG")
    parts = [file.getvalue() for file in files]
    stored = {
        "test_jpeg": np.frombuffer(b"".join(parts), np.uint8),
        "test_offset": np.cumsum([0, *map(len, parts)]),
        "test_label": np.array([7, 8, 9]),
    }
    for count in (1, 3):
        decoded, labels = images._decoded(stored, "test", count)
        assert np.array_equal(decoded, pixels[:count].transpose(0, 3, 1, 2))
        assert labels.tolist() == [7, 8, 9][:count]
