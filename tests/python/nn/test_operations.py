# SPDX-License-Identifier: Apache-2.0
"""Tests the table of operations: each row replaces torch's functions within cpd.autocast, and
`cpd.convert` converts the row's modules."""

from __future__ import annotations

import importlib

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import cpd  # noqa: E402
from cpd.nn import autocast  # noqa: E402
from cpd.nn.converted import classes  # noqa: E402
from cpd.nn.converted.emulations import EMULATIONS, TORCHS  # noqa: E402
from cpd.nn.operations import OPERATIONS, Operation, by_function  # noqa: E402

RECIPE = cpd.Recipe("e4m3fn", norm="bf16", embedding="bf16", attention="e4m3fn", softmax="bf16")
SIZES = {
    nn.Embedding: (4, 8),
    nn.GroupNorm: (2, 4),
    nn.LayerNorm: (4,),
    nn.MultiheadAttention: (4, 2),
    nn.RMSNorm: (4,),
}
MODULES = [(row, module) for row in OPERATIONS for module in row.modules]


def test_a_row_names_functions_of_torch():
    functions = by_function(OPERATIONS)
    assert {row.name for row in functions.values()} == {row.name for row in OPERATIONS}
    assert len({row.name for row in OPERATIONS}) == len(OPERATIONS)
    assert functions[F.linear].name == functions[torch.ops.aten.linear.default].name == "linear"
    assert functions[torch.linalg.matmul] is functions[torch.Tensor.__matmul__]
    assert torch.layer_norm not in functions  # its arguments differ from F.layer_norm's


@pytest.mark.parametrize(
    ("row", "kind"), MODULES, ids=[f"{r.name} {m.__name__}" for r, m in MODULES]
)
def test_a_rows_modules_are_converted(row, kind):
    count = 1 if "Norm" in kind.__name__ else 3 if "Conv" in kind.__name__ else 2
    module = kind(*SIZES.get(kind, (4,) * count))
    (line,) = (one for one in cpd.convert(module, RECIPE, coverage=False) if not one.name)
    assert (line.what, line.why_not) == (row.what, "")
    assert type(module).__name__ == f"Emulated{kind.__name__}"
    assert TORCHS[kind].what == row.what
    cpd.restore(module)
    assert type(module) is kind


@pytest.mark.parametrize(
    ("module", "mixin", "kind", "what"),
    [
        ("products", "EmulatedLinear", nn.Linear, "products"),
        ("products", "EmulatedConv", nn.Conv1d, "products"),
        ("products", "EmulatedConvTranspose", nn.ConvTranspose3d, "products"),
        ("products", "EmulatedConv1D", nn.Linear, "products"),
        ("attention", "EmulatedMultiheadAttention", nn.MultiheadAttention, "attention"),
        ("recurrent", "EmulatedRecurrent", nn.GRU, "recurrence"),
        ("recurrent", "EmulatedCell", nn.GRUCell, "recurrence"),
        ("norms", "EmulatedNorm", nn.BatchNorm2d, "norm"),
        ("embedding", "EmulatedEmbedding", nn.Embedding, "table"),
        ("own", "EmulatedAttention", nn.Identity, "attention"),
        ("own", "EmulatedOwnNorm", nn.SyncBatchNorm, "norm"),
        ("encoder", "CallsItsLayers", nn.TransformerEncoderLayer, ""),
    ],
)
def test_pickles_of_0_7_name_a_mixin(module, mixin, kind, what):
    name = getattr(importlib.import_module(f"cpd.nn.converted.{module}"), mixin)
    assert EMULATIONS[name].what == what
    assert type(classes._new(name, kind)).__mro__[1] is kind


def test_a_convolution_of_0_7_has_its_dimensions():
    layer = nn.Conv1d(2, 3, 3)
    cpd.convert(layer, RECIPE, coverage=False)
    name = importlib.import_module("cpd.nn.converted.products").EmulatedConv
    loaded = classes._new(name, nn.Conv1d)
    loaded.__setstate__(layer.__getstate__())
    x = torch.randn(1, 2, 8)
    assert torch.equal(loaded(x), layer(x))


def test_a_new_row_is_one_function(monkeypatch):
    """A new operation can be emulated by writing a single function and adding it to the table. The
    test does so for cdist, which CPD leaves to torch."""

    def cdist(a, b, *, recipe, **how):
        return cpd.functional.matmul(a, b.mT, recipe=recipe, **how)

    def form(mode, a, b, **usual):
        return cdist(a, b, **mode._take())

    a, b = torch.randn(3, 8), torch.randn(5, 8)
    with cpd.autocast("e4m3fn") as mode:
        torch.cdist(a, b)
    assert mode.left == {"cdist": 1}
    table = autocast._OPERATIONS | by_function([Operation("cdist", "cdist", form)])
    monkeypatch.setattr(autocast, "_OPERATIONS", table)
    with cpd.autocast("e4m3fn") as mode:
        y = torch.cdist(a, b)
    assert torch.equal(y, cpd.functional.matmul(a, b.mT, recipe="e4m3fn"))
    assert not mode.left
