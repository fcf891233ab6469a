# SPDX-License-Identifier: Apache-2.0
"""Tests CUDA graphs on a GPU. A graph captures and replays every kind of operation, and a training
step of every named recipe. test_gpu.py runs this file as a program, which prints one line for each
failure."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable

import torch

import cpd
from by_keywords import by_keywords
from cpd.nn.ready import READY
from tensors import normal, same


def captured_calls(
    device: str = "cuda", side: int = 64
) -> dict[str, Callable[[torch.Tensor], torch.Tensor]]:
    """Returns one call of each kind of operation, by name. Each call takes a square matrix of
    `side` rows on `device`."""
    integers = torch.arange(side * side, device=device, dtype=torch.int32).view(side, side) % 256
    drawn = {"rounding": "stochastic", "random_bits": 8}
    sums = ("e4m3", "e4m3 kahan", "e4m3 pairwise", "fp32 chunked inner=e4m3", "int32")
    calls: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "cast": lambda x: cpd.cast(x, "e4m3"),
        "cast stochastic": lambda x: by_keywords(cpd.cast, x, "e4m3", **drawn, seed=3),
        "cast random": lambda x: by_keywords(cpd.cast, x, "e4m3", **drawn, random=integers),
        "encode": lambda x: cpd.encode(x, "e4m3fn"),
        "encode without NaN": lambda x: cpd.encode(x, "e2m1"),
        "decode": lambda x: cpd.decode(cpd.encode(x, "e4m3"), "e4m3", x.shape),
        "add": lambda x: cpd.add(x, x, "e4m3"),
        "div": lambda x: cpd.div(x, x.t(), "e4m3"),
        "sqrt": lambda x: cpd.sqrt(x.abs(), "e4m3"),
        "hadamard": lambda x: cpd.hadamard(x, "hadamard16"),
        "scaled encode": lambda x: cpd.encode(x, "mxfp8")[0],
        "fma": lambda x: cpd.gemm(cpd.cast(x, "e4m3"), x, "e4m3 fma"),
        "unit": lambda x: cpd.gemm(cpd.cast(x, "e4m3fn"), cpd.cast(x, "e4m3fn"), "h100-fp8"),
        "blas": lambda x: cpd.gemm(cpd.cast(x, "e4m3"), cpd.cast(x, "e4m3"), "fp32", blas=True),
    }
    wires = ("qsgd bits=4 bucket=64", "top_k 0.25 feedback=off")
    for spec in (cpd.Reduce("e4m3"), *(cpd.Reduce(text) for text in wires)):
        calls[f"simulate_all_reduce {spec}"] = lambda x, spec=spec: cpd.simulate_all_reduce(
            [[x], [x.t().contiguous()]], spec
        )[0]
    for text in ("mxfp8", "nvfp4", "fp8-block", "int8"):
        calls[f"cast {text}"] = lambda x, text=text: cpd.cast(x, text)
    calls["cast nvfp4 stochastic"] = lambda x: cpd.cast(x, "nvfp4 stochastic", seed=3)
    for text in sums:
        calls[f"sum {text}"] = lambda x, text=text: cpd.sum(x, text, axis=1)
        calls[f"gemm {text}"] = lambda x, text=text: cpd.gemm(cpd.cast(x, "e4m3"), x, text)
    return calls


def operations() -> list[str]:
    """Captures each operation in a graph, replays it on another input, and compares with the eager
    result. The host must not wait for the GPU during a capture. Returns the failures."""
    x = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).cuda()
    wrong = []
    for name, call in captured_calls().items():
        first, second = x, x.t().contiguous() * 2
        wanted = call(second)
        call(first)
        input = first.clone()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph):
                got = call(input)
        except RuntimeError as error:
            wrong.append(f"{name}: {error}")
            continue
        input.copy_(second)
        graph.replay()
        if not same(got.cpu(), wanted.cpu()):
            wrong.append(f"{name}: other bits")
    return wrong


def converted(recipe: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 64)
    )
    cpd.convert(model, recipe, coverage=False)
    return model.cuda()


def trained(model: torch.nn.Module, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Returns a function that takes one step of SGD without momentum and returns the loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def training_steps() -> list[str]:
    """Compares three replays of a captured training step with three eager steps, for each recipe.
    Each replay must use new random integers and update the delayed scales. Returns the failures."""
    wrong = []
    for recipe in READY:
        eager = converted(recipe)
        captured = copy.deepcopy(eager)
        x = normal(32, 64).cuda()
        step, replayed = trained(eager, x), trained(captured, x)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            replayed()  # loads kernels and fills caches
        torch.cuda.current_stream().wait_stream(side)
        step()
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                loss = replayed()
        except RuntimeError as error:
            wrong.append(f"{recipe}: {error}")
            continue
        for _ in range(3):
            graph.replay()
            if not same(loss.cpu(), step().cpu()):
                wrong.append(f"{recipe}: another loss")
        pairs = zip(captured.parameters(), eager.parameters(), strict=True)
        if not all(same(p.detach().cpu(), q.detach().cpu()) for p, q in pairs):
            wrong.append(f"{recipe}: other weights")
    return wrong


if __name__ == "__main__":
    wrong = operations() + training_steps()
    print(*wrong, sep="\n")
    sys.exit(bool(wrong))
