# SPDX-License-Identifier: Apache-2.0
"""Finds the order in which torch.distributed's all-reduce adds, chunk by chunk.

Every rank holds values of very different magnitudes, so another order gives other bits. For each
chunk rank 0 adds the ranks' values in every order and prints the orders that give the same bits.
Exchanging the first two ranks of an order gives the same sum. Finally, rank 0 checks for one of
these orders that `cpd.simulate_all_reduce` gives the same bits.

Run: torchrun --nproc-per-node 4 examples/32_which_collective.py [--backend gloo] [--dtype bfloat16]
"""

import argparse
import itertools
import os
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

import cpd

FORMATS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
MOST_RANKS = 6
Found = tuple[slice, list[tuple[int, ...]]]
"""A range of a tensor's indices, and the orders of ranks whose sums have the all-reduce's bits in
this range."""
TREES = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Which order does this all-reduce add in?")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--dtype", choices=FORMATS, default="float32")
    parser.add_argument(
        "--values", type=int, default=1 << 20, help="number of values (default: 1048576)"
    )
    options = parser.parse_args(arguments)

    dist.init_process_group(options.backend)
    rank, world = dist.get_rank(), dist.get_world_size()
    if not 3 <= world <= MOST_RANKS:
        raise SystemExit(f"takes 3 to {MOST_RANKS} ranks, got {world}")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if options.backend == "nccl" else "cpu"
    dtype = getattr(torch, options.dtype)
    terms = [contribution(r, options.values).to(dtype) for r in range(world)]
    result = terms[rank].to(device, copy=True)
    dist.all_reduce(result)
    if rank == 0:
        report(terms, result.cpu(), FORMATS[options.dtype])
    dist.destroy_process_group()
    return 0


def contribution(rank: int, count: int) -> Tensor:
    """Returns normal values times powers of two from 2^-8 to 2^7."""
    generator = torch.Generator().manual_seed(rank)
    powers = torch.randint(-8, 8, (count,), generator=generator)
    return torch.randn(count, generator=generator) * torch.exp2(powers.float())


def report(terms: list[Tensor], result: Tensor, format: str) -> None:
    """Prints each range of values with the orders of ranks whose sums have the all-reduce's
    bits."""
    size = -(-len(result) // (16 * len(terms)))
    chunks = [slice(first, min(first + size, len(result))) for first in range(0, len(result), size)]
    found = [(chunk, orders(terms, result, chunk)) for chunk in chunks]
    by_orders = itertools.groupby(divided(terms, result, found), lambda pair: pair[1])
    for matches, group in by_orders:
        same_order = [chunk for chunk, _ in group]
        values = slice(same_order[0].start, same_order[-1].stop)
        shown = [" + ".join(map(str, order)) for order in matches] + others(terms, result, values)
        simulated = matches and torch.equal(
            simulate(terms, matches[0], values, format), result[values]
        )
        note = "; cpd.simulate_all_reduce gives the same bits" if simulated else ""
        text = " or ".join(shown) or "no order found"
        print(f"values {values.start:>9,} to {values.stop - 1:>9,}: {text}{note}")


def divided(terms: list[Tensor], result: Tensor, chunks: list[Found]) -> Iterator[Found]:
    """Splits a chunk in two if the sum in no single order of ranks has its bits.

    The values before a border get the order of ranks of the chunk to the left, and the other values
    get the order of the chunk to the right. The border is the first value for which a sum in the
    left order differs from the all-reduce's result. A few values may have the bits of both orders.
    """
    for i, (chunk, matches) in enumerate(chunks):
        left = chunks[i - 1][1] if i else []
        right = chunks[i + 1][1] if i + 1 < len(chunks) else []
        if matches or not left or not right:
            yield chunk, matches
            continue
        differs = added(terms, left[0], chunk) != result[chunk]
        border = chunk.start + int(differs.int().argmax())
        rest = slice(border, chunk.stop)
        if torch.equal(added(terms, right[0], rest), result[rest]):
            yield slice(chunk.start, border), left
            yield rest, right
        else:
            yield chunk, matches


def orders(terms: list[Tensor], result: Tensor, values: slice) -> list[tuple[int, ...]]:
    """Returns each order of ranks whose sum, rounded at each step, has the all-reduce's bits."""
    return [
        order
        for order in itertools.permutations(range(len(terms)))
        if order[0] < order[1] and torch.equal(added(terms, order, values), result[values])
    ]


def added(terms: list[Tensor], order: tuple[int, ...], values: slice) -> Tensor:
    """Returns the sum of the ranks' values in the given order, rounded at each step."""
    total = terms[order[0]][values]
    for r in order[1:]:
        total = total + terms[r][values]
    return total


def others(terms: list[Tensor], result: Tensor, values: slice) -> list[str]:
    """Describes sums that are not one chain of additions but have the all-reduce's bits.

    These are the sums (a + b) + (c + d) of four ranks, and the exact sum rounded once.
    """
    matches = []
    for (a, b), (c, d) in TREES if len(terms) == 4 else ():
        tree = (terms[a] + terms[b]) + (terms[c] + terms[d])
        if torch.equal(tree[values], result[values]):
            matches.append(f"({a} + {b}) + ({c} + {d})")
    exact = torch.stack([term[values].double() for term in terms]).sum(0)
    if torch.equal(exact.to(result.dtype), result[values]):
        matches.append("added in higher precision, rounded once")
    return matches


def simulate(terms: list[Tensor], order: tuple[int, ...], values: slice, format: str) -> Tensor:
    """Returns CPD's sum of the terms in the given order, each step rounded to the format."""
    spec = cpd.Reduce(format, accumulator=format, result=format)
    (total,) = cpd.simulate_all_reduce([[terms[r][values].float()] for r in order], spec)
    return total.to(terms[0].dtype)


if __name__ == "__main__":
    raise SystemExit(main())
