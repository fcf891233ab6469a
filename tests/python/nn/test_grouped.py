# SPDX-License-Identifier: Apache-2.0
"""Tests cpd.functional.grouped_mm: each group equals a separate matmul. Shapes, errors and
gradients are torch's."""

import pytest
import torch
import torch.nn.functional as F

import cpd

RECIPES = [
    cpd.Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8-e5m2"),
    cpd.Recipe(sums="e6m9 chunked", activation="e5m2", weight="(4,3)"),
    cpd.Recipe(sums="e4m3 sequential rounding=stochastic", gradient="e5m2 rounding=stochastic"),
    cpd.Recipe("native"),
]
K, N = 32, 5
STREAM = 5


def _random(*shape):
    return torch.randn(shape, requires_grad=True)


def _by_hand(pairs, recipe, join):
    return join(
        [
            cpd.functional.matmul(a, b, recipe=recipe, stream=STREAM ^ n)
            for n, (a, b) in enumerate(pairs)
        ]
    )


def _check(a, b, ends, recipe, pairs, join):
    offs = torch.tensor(ends, dtype=torch.int32)
    y = cpd.functional.grouped_mm(a, b, offs=offs, recipe=recipe, stream=STREAM)
    wanted = _by_hand(pairs, recipe, join)
    assert torch.equal(y, wanted)
    g = torch.randn_like(y)
    for one, other in zip(
        torch.autograd.grad(y, (a, b), g), torch.autograd.grad(wanted, (a, b), g), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
class TestGroups:
    def test_rows(self, recipe):
        a, b = _random(9, K), _random(3, K, N)
        pairs = [(a[:4], b[0]), (a[4:4], b[1]), (a[4:9], b[2])]
        _check(a, b, [4, 4, 9], recipe, pairs, torch.cat)

    def test_columns(self, recipe):
        a, b = _random(2, 4, K), _random(K, 7)
        pairs = [(a[0], b[:, :3]), (a[1], b[:, 3:])]
        _check(a, b, [3, 7], recipe, pairs, lambda parts: torch.cat(parts, 1))

    def test_summed_dimension(self, recipe):
        a, b = _random(4, 3 * K), _random(3 * K, N)
        pairs = [(a[:, :K], b[:K]), (a[:, K:], b[K:])]
        _check(a, b, [K, 3 * K], recipe, pairs, torch.stack)

    def test_batches(self, recipe):
        a, b = _random(2, 4, K), _random(2, K, N)
        y = cpd.functional.grouped_mm(a, b, recipe=recipe, stream=3)
        assert torch.equal(y, cpd.functional.matmul(a, b, recipe=recipe, stream=3))


def test_as_torch_computes():
    a, b = torch.randn(8, 16, dtype=torch.bfloat16), torch.randn(2, 16, 16, dtype=torch.bfloat16)
    offs = torch.tensor([3, 8], dtype=torch.int32)
    ours = cpd.functional.grouped_mm(a, b, offs=offs, recipe="native")
    assert torch.equal(ours, F.grouped_mm(a, b, offs=offs))
    with cpd.autocast(cpd.Recipe("native", weight="e4m3fn")) as mode:
        y = F.grouped_mm(a, b, offs=offs)
        z = torch._grouped_mm(a, b, offs=offs)
    wanted = cpd.functional.grouped_mm(a, b, offs=offs, recipe=mode.recipe)
    assert torch.equal(y, wanted)
    assert torch.equal(z, wanted)
    assert not mode.left


def test_rows_after_the_last_group_are_zeros():
    y = cpd.functional.grouped_mm(
        torch.ones(5, 4),
        torch.ones(2, 4, 3),
        offs=torch.tensor([1, 3], dtype=torch.int32),
        recipe=cpd.Recipe(sums="fp32"),
    )
    assert y.sum(1).tolist() == [12.0, 12.0, 12.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("shapes", "ends", "message"),
    [
        (((5, 4), (2, 4, 3)), [3, 2], "must not fall"),
        (((5, 4), (2, 4, 3)), [3, 6], "0…5"),
        (((5, 4), (2, 4, 3)), [5], "each of 2 groups"),
        (((5, 4), (2, 4, 3)), None, "offs must be a vector"),
        (((5, 4), (2, 4, 3)), [1.0, 5.0], "offs must be a vector"),
        (((2, 5, 4), (2, 4, 3)), [1, 2], "offs must be None"),
        (((5,), (2, 4, 3)), [1, 2], "2 or 3 dimensions"),
    ],
)
def test_bad_groups(shapes, ends, message):
    offs = None if ends is None else torch.tensor(ends)
    with pytest.raises(ValueError, match=message):
        cpd.functional.grouped_mm(
            *map(torch.ones, shapes), offs=offs, recipe=cpd.Recipe(sums="e4m3")
        )


def test_a_bias_is_refused_as_by_torch():
    with pytest.raises(ValueError, match="bias must be None"):
        cpd.functional.grouped_mm(
            torch.ones(2, 2, 2),
            torch.ones(2, 2, 2),
            bias=torch.ones(2),
            recipe=cpd.Recipe(sums="e4m3"),
        )
