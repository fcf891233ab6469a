# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of layers and recipes: errors for wrong groups, what counts as emulated, casts
of both operands, seeds as tensors, eval mode and mixed dtypes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import cpd  # noqa: E402
from cpd.nn.converted.emulations import replacing  # noqa: E402
from cpd.nn.notes import title_of  # noqa: E402
from cpd.nn.observed_rows import WatchRow, _cells  # noqa: E402
from cpd.nn.operations import Operation  # noqa: E402


@pytest.mark.parametrize(("channels", "groups"), [(4, 3), (4, 0), (3, 3)])
def test_groups_divide_the_channels(channels, groups):
    with pytest.raises(
        ValueError, match="must be weight's first dimension and a multiple of groups"
    ):
        cpd.functional.conv_transpose2d(
            torch.rand(1, channels, 5, 5), torch.rand(4, 2, 3, 3), groups=groups, recipe="native"
        )


def test_a_layer_that_torch_computes_otherwise_is_no_emulated_one():
    state = SimpleNamespace(
        recipe=cpd.Recipe("native"), numbers=lambda: {"seed": 0, "stream": 0}, delayed=None
    )
    module, x = SimpleNamespace(cpd=state), torch.rand(2)
    forward = replacing({F.relu: Operation("relu", "relu", lambda mode, value: value)})
    with pytest.raises(RuntimeError, match="computes the layer by none of relu"):
        forward(module, lambda module, value: value + 1, x)


def test_a_title_names_one_format_where_all_are_equal():
    e4m3 = {"activation": "e4m3fn", "weight": "e4m3fn"}
    assert title_of(cpd.Recipe("native", **e4m3, gradient="e4m3fn")).startswith(
        "activation, weight"
    )
    of_one = {"gradient": "e4m3fn", "grad_weight_gradient": "e5m2"}
    for other in ({"gradient": "e5m2"}, {}, of_one):
        assert title_of(cpd.Recipe("native", **e4m3, **other)).startswith("recipe ")


def test_nvfp4s_gradients_are_stochastic():
    """In the recipe nvfp4, the casts of the gradients of both GEMMs are stochastic and no other
    cast is, as in the recipe's source."""
    how = cpd.Recipe("nvfp4")
    found = {name: "rounding=stochastic" in str(getattr(how, name)) for name in (
        "activation", "weight", "gradient", "grad_weight_activation", "grad_weight_gradient"
    )}  # fmt: skip
    assert [name for name, is_random in found.items() if is_random] == [
        "gradient",
        "grad_weight_gradient",
    ]


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint64])
def test_streams_in_tensors(dtype):
    random = "rounding=stochastic"
    recipe = cpd.Recipe(sums=f"e4m3 sequential {random}", output=f"e4m3fn {random}")
    x, w = torch.rand(3, 40), torch.rand(5, 40)
    wanted = cpd.functional.linear(x, w, recipe=recipe, stream=9)
    given = cpd.functional.linear(x, w, recipe=recipe, stream=torch.tensor(9, dtype=dtype))
    assert torch.equal(given, wanted)
    assert not torch.equal(cpd.functional.linear(x, w, recipe=recipe, stream=8), wanted)


def test_scales_of_a_row_are_shown_from_zero_on():
    common = dict.fromkeys(("step", "layer", "role", "recipe", "gemm", "cast"), "")
    row = WatchRow(**common, count=1, zeros=0, nonfinite=0, min=0, max=1, amax=1, smallest=1)
    shown = {}
    for bounds in ((0.0, 2.0), (1.0, 2.0), (None, None)):
        made = WatchRow(**{**vars(row), "scale_min": bounds[0], "scale_max": bounds[1]})
        shown[bounds] = [cell for cell in _cells(made) if "…" in cell]
    assert [len(cells) for cells in shown.values()] == [1, 1, 0]


def test_attention_drops_nothing_in_eval_mode():
    pytest.importorskip("transformers")
    from cpd.nn.converted.dense_attention import attend

    q, k, v = torch.rand(3, 1, 2, 5, 8).unbind()
    module = nn.Linear(1, 1).eval()
    wanted = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
    for _ in range(3):
        assert torch.equal(attend(module, q, k, v, None, dropout=0.9)[0], wanted)
    module.train()
    assert not torch.equal(attend(module, q, k, v, None, dropout=0.9)[0], wanted)


def test_a_weight_in_bfloat16_beside_an_input_in_float32():
    """A bfloat16 weight is cast without a conversion that changes its values. The result equals the
    result with the same weight in float32."""
    w = torch.randn(16, 32, dtype=torch.bfloat16)
    x = torch.randn(8, 32)
    for cast in ("fp8-tensor", "mxfp8", "nvfp4"):
        recipe = cpd.Recipe("native", activation=cast, weight=cast)
        with pytest.raises(ValueError, match=r"must have one type outside of torch\.autocast"):
            cpd.functional.linear(x, w, recipe=recipe)
        y = cpd.functional.linear(x, w, recipe=recipe, dtype=torch.float32)
        assert torch.allclose(y, cpd.functional.linear(x, w.float(), recipe=recipe), rtol=1e-5)
