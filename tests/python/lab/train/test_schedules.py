# SPDX-License-Identifier: Apache-2.0
"""Tests schedules of the learning rate: values derived by hand, and errors for invalid texts."""

import pytest

pytest.importorskip("torch")

from cpd_lab.train import rate_schedule


@pytest.mark.parametrize(
    ("text", "epochs", "expected"),
    [
        ("constant", 10, {0: 1, 9.99: 1}),
        ("steps 40 80", 100, {0: 1, 39.9: 1, 40: 0.1, 79.9: 0.1, 80: 0.01, 99: 0.01}),
        ("steps 0.5 0.75", 8, {3.99: 1, 4: 0.1, 5.99: 0.1, 6: 0.01}),
        ("steps 2 factor 0.5", 4, {1.9: 1, 2: 0.5, 3.9: 0.5}),
        ("linear", 8, {0: 1, 2: 0.75, 6: 0.25, 8: 0}),
        ("polynomial", 4, {0: 1, 3: 0.5, 4: 0}),
        ("polynomial power 2", 4, {0: 1, 1: 0.5625, 2: 0.25}),
        ("warmup 5", 10, {0: 0, 2.5: 0.5, 5: 1, 9: 1}),
        ("warmup 5 constant", 10, {2.5: 0.5, 7: 1}),
        ("warmup 5 steps 40 80", 100, {0: 0, 1: 0.2, 5: 1, 39: 1, 40: 0.1, 80: 0.01}),
        ("warmup 4 from 0.5 linear", 12, {0: 0.5, 2: 0.75, 4: 1, 8: 0.5, 12: 0}),
        ("warmup 0.2 linear", 25, {0: 0, 2.5: 0.5, 5: 1, 15: 0.5, 25: 0}),
        ("warmup 2 polynomial power 0.5", 10, {1: 0.5, 2: 1, 8: 0.5}),
        ("warmup 4 linear", 3, {0: 0, 2: 0.5}),  # the training ends in the warm-up
    ],
)
def test_values(text, epochs, expected):
    schedule = rate_schedule(text)
    for progress, value in expected.items():
        assert schedule.at(progress, epochs) == pytest.approx(value, abs=1e-12), progress


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a schedule must be .* got ''"),
        ("linar", "schedule must be one of constant, steps, linear, polynomial, got 'linar' "
                  r"\(did you mean linear\?\)"),
        ("steps", "steps takes a number of at least 0, got ''"),
        ("steps ten", "steps takes a number of at least 0, got 'ten'"),
        ("steps 80 40", "steps must ascend"),
        ("steps 40 -80", "at least 0, got '-80'"),
        ("warmup linear", "warmup takes a number of at least 0, got 'linear'"),
        ("warmup 5 from linear", "from takes a number of at least 0, got 'linear'"),
        ("polynomial power nan", "power takes a number of at least 0, got 'nan'"),
        ("linear 3", "'3' does not fit in the schedule 'linear 3'; it must be "),
        ("constant linear", "'linear' does not fit"),
    ],
)  # fmt: skip
def test_texts_that_are_none(text, message):
    with pytest.raises(ValueError, match=message):
        rate_schedule(text)
