# SPDX-License-Identifier: Apache-2.0
"""Tests the counts of multiply-accumulates. All operands are ones, so each multiply-accumulate adds
1 to the sum of the results, which must equal the count."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import cpd
from cpd.nn.products import macs, name_of

FP32 = cpd.Recipe(sums="fp32")
MM = cpd.Recipe("native", weight="(4,3)")


class Counted(TorchDispatchMode):
    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls):
        return True

    def __init__(self):
        super().__init__()
        self.forward = self.backward = 0
        self.names = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        number = macs(func, args, kwargs or {}, result)
        if number is not None:
            self.names.add(name_of(func))
            if torch._C._current_autograd_node() is None:
                self.forward += number
            else:
                self.backward += number
        return result


def _ones(*shapes):
    return [torch.ones(shape, requires_grad=True) for shape in shapes]


PRODUCTS = {
    "mm": (lambda a, b: a @ b, [(3, 5), (5, 7)]),
    "addmm": (lambda a, b: torch.addmm(torch.zeros(7), a, b), [(3, 5), (5, 7)]),
    "bmm": (lambda a, b: a @ b, [(2, 3, 5), (2, 5, 7)]),
    "baddbmm": (lambda a, b: torch.baddbmm(torch.zeros(7), a, b), [(2, 3, 5), (2, 5, 7)]),
    "mv": (lambda a, b: a @ b, [(3, 5), (5,)]),
    "dot": (lambda a, b: a @ b, [(5,), (5,)]),
    "addmv": (lambda a, b: torch.addmv(torch.zeros(3), a, b), [(3, 5), (5,)]),
    "addbmm": (lambda a, b: torch.addbmm(torch.zeros(7), a, b), [(2, 3, 5), (2, 5, 7)]),
    "linear": (F.linear, [(2, 3, 5), (7, 5)]),
    "einsum": (lambda a, b: torch.einsum("bij,bkj->bki", a, b), [(2, 3, 5), (2, 7, 5)]),
    "conv1d": (F.conv1d, [(2, 3, 9), (4, 3, 3)]),
    "conv2d": (lambda x, w: F.conv2d(x, w, stride=2, groups=2), [(2, 4, 9, 8), (6, 2, 3, 2)]),
    "conv3d": (F.conv3d, [(1, 2, 4, 4, 4), (3, 2, 2, 2, 2)]),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, groups=2),
        [(2, 4, 5, 3), (4, 3, 3, 2)],
    ),
    "ours matmul": (lambda a, b: cpd.functional.matmul(a, b, recipe=MM), [(2, 3, 5), (2, 5, 7)]),
    "ours linear": (lambda a, b: cpd.functional.linear(a, b, recipe=MM), [(2, 3, 5), (7, 5)]),
    "our sums": (lambda a, b: cpd.functional.linear(a, b, recipe=FP32), [(2, 3, 5), (7, 5)]),
    "ours conv2d": (
        lambda x, w: cpd.functional.conv2d(x, w, stride=2, groups=2, recipe=MM),
        [(2, 4, 9, 8), (6, 2, 3, 2)],
    ),
    "ours conv_transpose2d": (
        lambda x, w: cpd.functional.conv_transpose2d(x, w, stride=2, groups=2, recipe=FP32),
        [(2, 4, 5, 3), (4, 3, 3, 2)],
    ),
    "ours scaled": (
        lambda a, b: cpd.functional.linear(
            a, b, recipe=FP32.replace(activation="mxfp8", weight="mxfp8", scales_at="block")
        ),
        [(2, 64), (7, 64)],
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Sparse")
def test_stored_values_of_sparse_operands():
    """In a product of a sparse operand, only stored values count as multiply-accumulates."""
    pattern = torch.tensor([[1.0, 0, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]])
    left, right = pattern.to_sparse(), torch.ones(4, 5)
    csr = pattern.to_sparse_csr()
    for run, wanted in (
        (lambda: torch.sparse.mm(left, right), 5 * 5),
        (lambda: torch.sparse.addmm(torch.zeros(3, 5), left, right), 5 * 5),
        (lambda: torch.sparse.mm(left, pattern.mT.to_sparse()), int((pattern @ pattern.mT).sum())),
        (lambda: torch.sparse.sampled_addmm(csr, torch.ones(3, 7), torch.ones(7, 4)), 5 * 7),
        (lambda: torch.hspmm(left, right), 5 * 5),
    ):
        with Counted() as counted:
            run()
        assert counted.forward == wanted, counted.names


@pytest.mark.parametrize("name", PRODUCTS)
def test_each_multiply_accumulate_is_counted(name):
    run, shapes = PRODUCTS[name]
    operands = _ones(*shapes)
    with Counted() as counted:
        result = run(*operands)
        result.backward(torch.ones_like(result))
    wanted = int(result.sum())
    assert counted.forward == wanted
    gradients = sum(int(x.grad.sum()) for x in operands)
    assert gradients == 2 * wanted
    # torch computes the gradients of dot products by multiplications without sums. These do not
    # count as multiply-accumulates.
    assert counted.backward == {"dot": 0, "mv": wanted, "addmv": wanted}.get(name, gradients)


def test_attention_has_two_products_and_five_in_its_backward_pass():
    q, k, v = _ones((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8))
    with Counted() as counted:
        F.scaled_dot_product_attention(q, k, v).sum().backward()
    scores = 2 * 3 * 5 * 7
    assert counted.names <= {
        "aten._scaled_dot_product_flash_attention_for_cpu",
        "aten._scaled_dot_product_flash_attention_for_cpu_backward",
    }
    assert (counted.forward, counted.backward) == (scores * 16, scores * 40)


def test_a_recurrent_layer_multiplies_at_each_step():
    layer = torch.nn.LSTM(5, 6, num_layers=2)
    x = torch.ones(7, 3, 5)
    with Counted() as counted:
        y, _ = layer(x)
        y.sum().backward()
    of_a_step = sum(w.numel() for w in layer.parameters() if w.dim() == 2)
    assert counted.forward == 7 * 3 * of_a_step
    assert counted.backward == 2 * counted.forward


def test_grouped_products():
    a, b = torch.ones(8, 16, dtype=torch.bfloat16), torch.ones(2, 16, 24, dtype=torch.bfloat16)
    ends = torch.tensor([3, 8], dtype=torch.int32)
    with Counted() as counted:
        y = F.grouped_mm(a, b, offs=ends)
    assert counted.forward == int(y.float().sum()) == 8 * 16 * 24


def test_operators_of_higher_order():
    from torch.nn.attention.flex_attention import flex_attention

    q = torch.ones(2, 2, 128, 8)
    with torch.no_grad(), Counted() as counted:
        flex_attention(q, q, q)
    assert counted.forward == 2 * 2 * 128 * 128 * 16


def test_what_is_no_product_is_not_counted():
    with Counted() as counted:
        torch.ones(3) * torch.ones(3) + torch.ones(3, 3).sum(0)
    assert counted.names == set()
