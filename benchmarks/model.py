# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `model/<model>/<recipe>`: the forward and backward pass of a converted model,
compared to the same model unconverted, alternately. Uses two threads, and one thread for the small
model. Checks the bits first. Rates count the model's own multiplications and additions, so a ratio
of 0.74 means 1.35 times the time.

`model/<model>/census` is a step whose products are counted, compared to a step of the same
converted model. `model/grouped/<recipe>` is the product of eight equal groups, compared to the same
products as a batch.

`model/<model>/autocast/<recipe>` is a step under torch.autocast(bfloat16) (autocast.py).

`model/gpt/peer/torchao-float8` is `te-current`, compared to torchao's emulated float8 training,
which has the same casts. The ratio is how many times as fast CPD is. The row is skipped if torchao
is not installed.

ResNet-18 takes 64 images of 32 x 32. The GPT block has width 512 and takes 8 x 256 tokens. The
small GPT block has width 96 and takes 8 x 64 tokens. The LSTM has width 256 and takes 64 steps of
32 examples.
"""

from __future__ import annotations

import copy
import functools
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import autocast
import torch
from timing import Row, Side, seconds, timed
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import cpd
from cpd.nn.coverage import Census
from cpd_lab.train import models

SUMS = "e6m9 chunked chunk=64"
BARS = {
    "off": 0.98,
    "bf16": 0.741,
    "te-current": 0.741,
    "mxfp8": 0.625,
    "nvfp4": 0.625,
    "te-delayed": None,
    "deepseek-v3": None,
}
"""The least fraction of the unconverted model's rate that each recipe must reach: 1/1.02, 1/1.35 or
1/1.6."""
OF_SMALL = {"off": 0.98, "te-current": 0.741, "mxfp8": 0.667}
OF_LSTM = {"off": 0.98, "bf16": 0.667, "te-current": 0.667, "mxfp8": 0.667}
CENSUS = 0.769
GROUPED = {"mxfp8": 0.85, SUMS: 0.85}


@dataclass(frozen=True)
class Case:
    """A model and the shape of its input."""

    name: str
    model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    bars: dict[str, float | None]
    threads: int = 2
    more: bool = True
    """True if the model also has the benchmark rows `model/<model>/census` and
    `model/<model>/chunked`."""
    under_autocast: bool = False
    """True if the model also has the benchmark rows `model/<model>/autocast/…`."""


class Lstm(nn.Module):
    """An LSTM of torch as a module that returns only the output."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.lstm(x)[0]
        return y


CASES = (
    Case("resnet18", models.resnet18, (64, 3, 32, 32), BARS, under_autocast=True),
    Case("gpt", models.GptBlock, (8, 256, 512), BARS, under_autocast=True),
    Case("small", lambda: models.GptBlock(96, 4), (8, 64, 96), OF_SMALL, threads=1),
    Case("lstm", Lstm, (64, 32, 256), OF_LSTM, threads=1, more=False),
)


def step(model: nn.Module, x: Tensor) -> Tensor:
    """Runs one forward and backward pass. Returns the loss."""
    model.zero_grad(set_to_none=True)
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach()


def converted(case: Case, plain: nn.Module, name: str) -> nn.Module:
    """Returns a copy of the model that computes by a recipe. `off`: the copy is converted, but
    computes as torch does."""
    model = copy.deepcopy(plain)
    if name == "off":
        cpd.convert(model, "bf16", rules=[("*", None)], coverage=False)
    else:
        cpd.convert(model, name, coverage=False)
    return model


def wrong(case: Case, plain: nn.Module, x: Tensor, name: str) -> str:
    """Returns what is wrong with a converted model's loss, or an empty text. Two copies must give
    the same finite loss. For the recipe `off`, it must be the unconverted model's loss."""
    loss, again = (step(converted(case, plain, name), x) for _ in range(2))
    if not torch.equal(loss, again):
        return "two copies differ"
    if name == "off" and not torch.equal(loss, step(copy.deepcopy(plain), x)):
        return "not torch's own"
    return "" if torch.isfinite(loss) else "the loss is not finite"


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows."""
    threads = torch.get_num_threads()
    try:
        for case in CASES:
            torch.set_num_threads(case.threads)
            yield from _rows_of(case, options)
        torch.set_num_threads(1)
        yield from _grouped_rows(options)
    finally:
        torch.set_num_threads(threads)


def _rows_of(case: Case, options: Namespace) -> Iterator[Row]:
    names = {f"model/{case.name}/{name}": name for name in case.bars}
    chunked, peer = f"model/{case.name}/chunked", f"model/{case.name}/peer/torchao-float8"
    census = f"model/{case.name}/census"
    more = (census, chunked) if case.more else ()
    every = (*names, *more, *([peer] if case.name == "gpt" else []))
    selected = [full for full in every if options.selection.wants(full)]
    in_bfloat16 = case.under_autocast and any(
        options.selection.wants(f"model/{case.name}/autocast/{name}")
        for name in ("plain", *autocast.PEERS)
    )
    if not selected and not in_bfloat16:
        return
    torch.manual_seed(options.seed % 2**32)
    plain, x = case.model(), torch.randn(case.shape)
    with FlopCounterMode(display=False) as counter:
        step(plain, x)
    if in_bfloat16:
        make = functools.partial(converted, case, plain)
        work = counter.get_total_flops()
        yield from autocast.rows(case.name, plain, x, make, step, work, options)
    if not selected:
        return
    shapes = _products(plain, x)
    # torch's counter does not count recurrent layers.
    work = counter.get_total_flops() or 2 * sum(m * k * n for m, k, n in shapes)
    base = Side(lambda: step(plain, x), work)
    products = _native_rate(shapes)
    for full in selected:
        if full == chunked:
            yield _chunked_row(case, plain, x, full, options)
            continue
        if full == census:
            yield _census_row(case, plain, x, full, work, options) | products
            continue
        if full == peer:
            yield _peer_row(case, plain, x, full, work, options) | products
            continue
        name = names[full]
        fault = wrong(case, plain, x, name)
        if fault:
            yield {"name": full, "wrong": fault}
            continue
        model = converted(case, plain, name)
        side = Side(lambda model=model: step(model, x), work)  # type: ignore[misc]
        row = timed(full, "GFLOP/s", side, "unconverted", base, options.repeats) | products
        yield row if case.bars[name] is None else {**row, "bar": case.bars[name]}


def _census_row(
    case: Case, plain: nn.Module, x: Tensor, full: str, work: int, options: Namespace
) -> Row:
    model, counted = (converted(case, plain, "mxfp8") for _ in range(2))

    def count() -> None:
        census = Census(counted, warn_below=0)
        step(counted, x)
        census.finish()

    side, base = Side(count, work), Side(lambda: step(model, x), work)
    row = timed(full, "GFLOP/s", side, "not counted", base, options.repeats)
    return {**row, "bar": CENSUS}


def _grouped_rows(options: Namespace) -> Iterator[Row]:
    """Yields rows for grouped products: eight products of 64 x 256 by 256 x 256 in one call."""
    a, b = torch.randn(8, 64, 256), torch.randn(8, 256, 256)
    offs = torch.arange(64, 513, 64, dtype=torch.int32)
    for recipe, bar in GROUPED.items():
        full = f"model/grouped/{recipe.split()[0]}"
        if not options.selection.wants(full):
            continue
        rows = a.flatten(0, 1)

        def grouped(recipe: str = recipe, rows: Tensor = rows) -> Tensor:
            return cpd.functional.grouped_mm(rows, b, offs=offs, recipe=recipe)

        def batch(recipe: str = recipe) -> Tensor:
            return cpd.functional.matmul(a, b, recipe=cpd.Recipe(recipe))

        if not torch.equal(grouped(), batch().flatten(0, 1)):
            yield {"name": full, "wrong": "not the batch's bits"}
            continue
        work = 2 * a.numel() * b.shape[-1]
        base = Side(batch, work)
        row = timed(full, "GFLOP/s", Side(grouped, work), "one batch", base, options.repeats)
        yield {**row, "bar": bar, "bound": row["baseline"], "bound_is": "peer"}


def _peer_row(
    case: Case, plain: nn.Module, x: Tensor, full: str, work: int, options: Namespace
) -> Row:
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        return {"name": full, "skipped": "torchao is not installed"}
    theirs = copy.deepcopy(plain)
    convert_to_float8_training(theirs, config=Float8LinearConfig(emulate=True))
    ours = converted(case, plain, "te-current")
    sides = (Side(lambda model=model: step(model, x), work) for model in (ours, theirs))  # type: ignore[misc]
    first, second = sides
    return timed(full, "GFLOP/s", first, "torchao", second, options.repeats)


# ---- emulated sums -------------------------------------------------------------------------------


def _chunked_row(case: Case, plain: nn.Module, x: Tensor, full: str, options: Namespace) -> Row:
    """Times a training step whose products are summed in SUMS, compared to the same matrix products
    without the rest of the step. The products take operands in the layouts of the step; the
    operands of convolutions are already unfolded. So the step takes longer by the time of unfolding
    and of all operations that are not products."""
    model = copy.deepcopy(plain)
    cpd.convert(model, cpd.Recipe(sums=SUMS))
    small = x[: max(1, x.shape[0] // 8)]
    products = _products(plain, small)
    work = 2 * sum(m * k * n for m, k, n in products)
    operands = [_operands(place % 3, shape) for place, shape in enumerate(products)]

    def alone() -> None:
        for a, b in operands:
            cpd.gemm(a, b, SUMS)

    step(model, small), alone()
    turns = [(seconds(alone), seconds(lambda: step(model, small))) for _ in range(3)]
    ratios = sorted(bare / whole for bare, whole in turns)
    return {
        "name": full,
        "value": round(work / min(whole for _, whole in turns) * 1e-9, 3),
        "unit": "GFLOP/s",
        "against": "products alone",
        "baseline": round(work / min(bare for bare, _ in turns) * 1e-9, 3),
        "ratio": round(ratios[1], 4),
        "least": round(ratios[0], 4),
        "most": round(ratios[-1], 4),
        "bar": 0.9,
        "bound": round(work / min(bare for bare, _ in turns) * 1e-9, 3),
        "bound_is": "products",
    }


def _native_rate(products: list[tuple[int, int, int]]) -> Row:
    """Measures the bound of a model: its products alone, computed by torch, in GFLOP/s."""
    operands = [_operands(place % 3, shape) for place, shape in enumerate(products)]

    def alone() -> None:
        for a, b in operands:
            torch.mm(a, b)

    alone()
    work = 2 * sum(m * k * n for m, k, n in products)
    rate = work / min(seconds(alone) for _ in range(3)) * 1e-9
    return {"bound": round(rate, 3), "bound_is": "products"}


def _operands(which: int, shape: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Returns the operands of one of a layer's three products: the forward product, whose weight is
    transposed; the product for the input's gradient; or the product for the weight's gradient,
    whose input is transposed."""
    m, k, n = shape
    a = torch.randn(k, m).t() if which == 2 else torch.randn(m, k)
    return a, torch.randn(n, k).t() if which == 0 else torch.randn(k, n)


def _products(plain: nn.Module, x: Tensor) -> list[tuple[int, int, int]]:
    """Returns M, k and N of the three products of each linear layer, convolution and weight of an
    LSTM in one step. The products of an LSTM's state count once for each time step."""
    shapes: list[tuple[int, int, int]] = []

    def note(module: nn.Module, inputs: tuple[Tensor, ...], y: Any) -> None:
        if isinstance(module, nn.LSTM):
            steps, examples, k = inputs[0].shape
            add(steps * examples, k, 4 * module.hidden_size)
            for _ in range(steps):
                add(examples, module.hidden_size, 4 * module.hidden_size)
            return
        if isinstance(module, nn.Linear):
            rows, k, n = inputs[0].numel() // module.in_features, *module.weight.shape[::-1]
        else:
            assert isinstance(module, nn.Conv2d)
            rows, n = y.numel() // y.shape[1], y.shape[1]
            k = module.weight[0].numel()
        add(rows, k, n)

    def add(rows: int, k: int, n: int) -> None:
        shapes.extend([(rows, k, n), (rows, n, k), (k, rows, n)])

    layers = [m for m in plain.modules() if isinstance(m, (nn.Linear, nn.Conv2d, nn.LSTM))]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    with torch.no_grad():
        plain(x)
    for hook in hooks:
        hook.remove()
    return shapes
