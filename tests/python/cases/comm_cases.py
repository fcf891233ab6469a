# SPDX-License-Identifier: Apache-2.0
"""Functions that the tests of `cpd.comm` run on every rank. Each returns plain data."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import cpd
import cpd.comm
from cpd import _core, compress
from cpd.comm import Communicator, Mismatch, RankLost

FORMATS = ("e4m3", "e5m2", "e3m0", "e2m1", "e4m3fn", "fp16", "bf16", "fp32", "e6m9", "e2m5")
SCALINGS: tuple[dict[str, Any], ...] = (
    {},
    {"aps": True},
    {"aps": "paper"},
    {"loss_scale": 2.0**9},
    {"average": True},
    {"aps": True, "average": True},
    {"average": True, "divide": "before"},
    {"aps": True, "average": True, "divide": "before"},
)


# ---- all-reduce against the virtual ranks --------------------------------------------------------


def ways(world: int) -> list[dict[str, Any]]:
    """Returns every order with every exchange that supports the order, with and without groups."""
    found: list[dict[str, Any]] = []
    groups = sorted({2, 3, world} & set(range(1, world + 1)))
    for order, exchange in itertools.product(("sequential", "ring", "tree"), ("owner", "gather")):
        found += [{"order": order, "exchange": exchange, "group_size": g} for g in (None, *groups)]
    found.append({"order": "ring", "exchange": "ring"})
    found += [{"order": "ring", "exchange": "hierarchical", "group_size": g} for g in (1, *groups)]
    return found


def accumulators(f: str, way: dict[str, Any]) -> list[cpd.Accumulator]:
    """Returns accumulators that support the order of summation and the exchange in `way`."""
    random_sum = {"rounding": "stochastic", "random_bits": 11}
    sums = [
        cpd.Accumulator(f),
        cpd.Accumulator("fp32"),
        cpd.Accumulator("e6m9", rounding="to_odd"),
        cpd.Accumulator(f, **random_sum),
    ]
    if way["order"] != "tree":
        sums += [
            cpd.Accumulator(f, scheme="kahan"),
            cpd.Accumulator("e5m10 kahan", **random_sum),
            cpd.Accumulator("e6m9 chunked", inner=f, chunk=2),
        ]
        if way["exchange"] in ("owner", "gather"):
            sums.append(cpd.Accumulator(f, scheme="pairwise"))
    return sums


def spec_at(world: int, index: int) -> tuple[cpd.Reduce, int]:
    """Returns a random all-reduce and its step. `index` selects order, exchange and group size."""
    draw = random.Random(f"{world}/{index}")
    all_ways = ways(world)
    way = all_ways[index % len(all_ways)]
    wire = draw.choice(FORMATS)
    options: dict[str, Any] = {}
    if draw.random() < 0.3:
        bits = draw.choice((3, 8, 16, 24))
        options |= {"rounding": "stochastic", "random_bits": bits}
    if draw.random() < 0.3:
        options["overflow"] = "saturate"
    accumulator = draw.choice(accumulators(wire, way))
    result, step = draw.choice((None, None, "fp32", "e5m10")), draw.choice((0, 7, 2**24 - 1))
    options |= {**way, **draw.choice(SCALINGS)}
    return cpd.Reduce(wire, accumulator=accumulator, result=result, **options), step


def layers_of(rank: int, sizes: tuple[int, ...], seed: int, special: bool = False) -> list[Any]:
    """Returns the layers of one rank. With `special`, they contain NaN, infinities and -0."""
    rng = np.random.default_rng([seed, rank])
    layers = []
    for index, size in enumerate(sizes):
        scale = np.exp2(rng.integers(-5, 3, size)) * 2.0 ** (-4 * index)
        x = (rng.normal(size=size) * scale).astype(np.float32)
        if special and size > 4:
            where = np.random.default_rng(seed).integers(0, size, 4)
            x[where] = np.float32([np.nan, np.inf, -np.inf if rank else np.inf, -0.0])
        layers.append(x)
    return layers


def sizes_for(world: int) -> tuple[int, ...]:
    return (1000, 0, 1, max(world - 1, 0), 2, 7001)


def same(a: list[Any], b: list[Any]) -> bool:
    """Returns True if two lists of layers have the same shapes and bits."""
    return len(a) == len(b) and all(
        x.shape == y.shape and np.array_equal(x.view(np.uint32), y.view(np.uint32))
        for x, y in zip(a, b, strict=True)
    )


def virtual(
    spec: cpd.Reduce, world: int, sizes: Any, drawn: int, special: bool = False, **numbers: int
) -> Any:
    ranks = [layers_of(rank, sizes, drawn, special) for rank in range(world)]
    return cpd.simulate_all_reduce(ranks, spec, report=True, **numbers)


def compare(comm: Communicator, first: int, count: int) -> list[str]:
    """Returns a message for each sum unlike simulate_all_reduce's, then a hash of all sums."""
    wrong, digest = [], hashlib.sha256()
    for index in range(first, first + count):
        spec, step = spec_at(comm.size, index)
        comm.seed, numbers = 2**63 + index, {"seed": 2**63 + index, "step": step}
        sizes = sizes_for(comm.size) if index % 10 else (70_001, 3)
        special = index % 4 == 3
        wanted, reports = virtual(spec, comm.size, sizes, index, special, **numbers)
        mine = layers_of(comm.rank, sizes, index, special)
        got, report = comm.all_reduce(mine, spec, report=True, step=step)
        if not same(got, wanted):
            wrong.append(f"{index}: {spec}")
        if report.tensors != reports:
            wrong.append(f"{index}: reports {report.tensors} for {reports}: {spec}")
        if not same(mine, layers_of(comm.rank, sizes, index, special)):
            wrong.append(f"{index}: inputs were written")
        for layer in got:
            digest.update(layer.tobytes())
    return [*wrong, digest.hexdigest()]


# ---- the other operations ------------------------------------------------------------------------


class RunLengths:
    """A codec whose messages vary in size: a run of equal values becomes a count and a binary32."""

    name = "run_lengths"
    value_bytes = 8

    def encode(self, values: Any) -> bytes:
        patterns = values.view(np.uint32)
        starts = np.flatnonzero(np.diff(patterns, prepend=~patterns[:1]))
        counts = np.diff(starts, append=patterns.size)
        return np.stack([counts.astype(np.uint32), patterns[starts]], axis=1).tobytes()

    def decode(self, data: bytes) -> Any:
        if len(data) % 8:
            raise ValueError("a run is cut off")
        counts, patterns = np.frombuffer(data, np.uint32).reshape(-1, 2).T
        if counts.sum(dtype=np.uint64) > 4096:
            raise ValueError("runs of more than a block")
        return np.repeat(patterns, counts).view(np.float32)


def any_size(comm: Communicator, damages: bool = False) -> list[str]:
    """Tests messages of varying size in all `ways`. Returns those with wrong sums, or an error."""
    wrong = []
    codec = RunLengths()
    if damages and comm.rank == 0:
        codec.encode = lambda values: b"\0" * 4  # type: ignore[method-assign]
    for way in ways(comm.size):
        spec = cpd.Reduce("e4m3", rounding="stochastic", aps=True, **way)
        sizes = (1, 0, 257, 5000)
        layers = [np.round(4 * x) / 4 for x in layers_of(comm.rank, sizes, 5)]
        ranks = [[np.round(4 * x) / 4 for x in layers_of(r, sizes, 5)] for r in range(comm.size)]
        expected = cpd.simulate_all_reduce(ranks, spec, seed=3)
        out = [np.full_like(layer, -1.0) for layer in layers]
        native = _core.with_codec(spec._held, codec)
        try:
            comm._native.all_reduce(layers, out, native, False, 3)
        except (cpd.comm.TransportError, RankLost) as error:
            return [f"{type(error).__name__}: {error}"]
        if not same(expected, out):
            wrong.append(str(way))
    return wrong


def scaled(comm: Communicator) -> list[str]:
    """Tests scaled formats in all `ways`. Returns those unlike simulate_all_reduce's results."""
    wrong = []
    for index, way in enumerate(ways(comm.size)):
        q = ("mxfp8", "nvfp4", "fp8-tensor", "int5 7 scale=bf16")[index % 4]
        spec = cpd.Reduce(q, result="bf16", rounding="stochastic", **way)
        sizes, special = (1, 0, 257, 5000), index % 3 == 2
        wanted, reports = virtual(spec, comm.size, sizes, index, special, seed=3)
        comm.seed = 3
        mine = layers_of(comm.rank, sizes, index, special)
        got, report = comm.all_reduce(mine, spec, report=True, step=0)
        if not same(got, wanted) or report.tensors != reports:
            wrong.append(f"{q}: {way}")
    return wrong


WIRES = (
    "qsgd bits=4 bucket=64",
    "qsgd bits=3 bucket=tensor norm=2 levels=intervals",
    "qsgd s=16 bucket=48 axis=0",
    "terngrad",
    "terngrad share=off clip=none bucket=128",
    "one_bit",
    "one_bit bucket=64",
    "one_bit bucket=48 axis=0",
    "top_k 0.1 qsgd bits=4",
    "fp8_rows",
    "int8_rows stochastic",
    "int4",
    "quantized mxfp8",
    "uniform bits=5",
    "blockwise nvfp4",
    "blockwise uniform bits=5",
    "feedback int4 bucket=32",
    "feedback qsgd bits=2 bucket=128",
)
"""Codecs of every kind. The codecs with error feedback have a state from call to call."""
SHAPES = ((40, 25), (0, 3), (1,), (6, 3, 3), (5001,))


def codec_layers(rank: int, step: int) -> list[Any]:
    sizes = tuple(int(np.prod(shape)) for shape in SHAPES)
    flat = layers_of(rank, sizes, step, special=False)
    return [x.reshape(shape) for x, shape in zip(flat, SHAPES, strict=True)]


def codecs(comm: Communicator, of: int) -> list[str]:
    """Tests every codec for three steps with states, in every `of`-th pair of order and exchange.
    The first pair varies by codec. Returns the cases that differ from virtual ranks."""
    wrong = []
    ways_of = [w for w in ways(comm.size) if w["exchange"] in ("owner", "gather")]
    pairs = [(wire, way) for i, wire in enumerate(WIRES) for way in ways_of[i % of :: of]]
    for index, (wire, way) in enumerate(pairs):
        spec = cpd.Reduce(wire, average=index % 2 == 0, **way)
        mine, everyone = compress.States(), compress.States()
        for step in range(3):
            comm.seed, numbers = index, {"seed": index, "step": step}
            ranks = [codec_layers(rank, step) for rank in range(comm.size)]
            wanted, reports = cpd.simulate_all_reduce(
                ranks, spec, **numbers, states=everyone, report=True
            )
            got, report = comm.all_reduce(
                ranks[comm.rank], spec, states=mine, report=True, step=step
            )
            if not same(got, wanted) or report.tensors != reports:
                wrong.append(f"{wire}: {way}, step {step}")
        if kept_by(mine, comm.rank) != kept_by(everyone, comm.rank):
            wrong.append(f"{wire}: {way}, what is kept")
    return wrong


def kept_by(states: compress.States, rank: int) -> list[Any]:
    """Returns what the codecs stored in `states` when they encoded the contributions of `rank`."""
    layers = states.state_dict()["layers"]
    return [one for one in layers if one["rank"] == rank and one["stage"] == "contribution"]


def others(comm: Communicator) -> list[str]:
    """Tests reduce, reduce_scatter, all_gather, all_gather_bytes, barrier and subgroup. Returns the
    names of the calls with a wrong result."""
    wrong = []
    sizes = sizes_for(comm.size)
    spec = cpd.Reduce("e4m3", accumulator=cpd.Accumulator("e5m10 kahan"), order="ring", aps=True)
    wanted, _ = virtual(spec, comm.size, sizes, 5)
    mine = layers_of(comm.rank, sizes, 5)
    for root in range(comm.size):
        got = comm.reduce(mine, spec, root, step=0)
        if (got is None) == (comm.rank == root) or (got is not None and not same(got, wanted)):
            wrong.append(f"reduce to {root}")
    parts = [slice_of(x, comm.rank, comm.size) for x in wanted]
    if not same(comm.reduce_scatter(mine, spec, step=0), parts):
        wrong.append("reduce_scatter")
    for f in ("e4m3", "fp32", "e2m1 overflow=saturate", "e4m3 stochastic"):
        for rank, layers in enumerate(comm.all_gather(mine, f, step=6)):
            streams = ((1 << 60 | 6 << 36 | n << 20 | rank) for n in range(len(layers)))
            given = zip(layers_of(rank, sizes, 5), streams, strict=True)
            if not same(layers, [cpd.cast(x, f, seed=comm.seed, stream=s) for x, s in given]):
                wrong.append(f"all_gather {f} of rank {rank}")
    for lengths in BYTES:
        sent = [bytes_of(rank, lengths) for rank in range(comm.size)]
        if comm.all_gather_bytes(sent[comm.rank]) != sent:
            wrong.append(f"all_gather_bytes {lengths}")
    comm.barrier()
    chosen = list(range(comm.size % 2, comm.size, 2))
    if comm.rank in chosen:
        with comm.subgroup(chosen) as sub:
            total = sub.all_reduce([np.float32([comm.rank])], cpd.Reduce("fp32"))
            if (sub.rank, sub.size) != (chosen.index(comm.rank), len(chosen)) or (
                total[0].item() != sum(chosen)
            ):
                wrong.append(f"subgroup {chosen}")
    comm.barrier()
    return wrong


BYTES = ((0,), (1,), (5000,), (0, 1, 5000, 7), (5000, 0))
"""Sizes of messages in bytes, by rank. If there are more ranks than sizes, the sizes repeat."""


def bytes_of(rank: int, lengths: tuple[int, ...]) -> bytes:
    return np.random.default_rng(rank).bytes(lengths[rank % len(lengths)])


def slice_of(x: Any, rank: int, world: int) -> Any:
    """Returns the slice of `x` that `rank` gets in a reduce-scatter. Earlier slices may be
    longer."""
    bounds = [0]
    for r in range(world):
        bounds.append(bounds[-1] + len(x) // world + (r < len(x) % world))
    return x[bounds[rank] : bounds[rank + 1]]


# ---- ranks that want different things ------------------------------------------------------------

BASE_SUM: dict[str, Any] = {
    "format": "e5m10",
    "scheme": "chunked",
    "inner": "e6m9",
    "chunk": 4,
    "rounding": "stochastic",
}


def _accumulator(**changes: Any) -> cpd.Accumulator:
    keys = BASE_SUM | changes
    return cpd.Accumulator(keys.pop("format"), **keys)


BASE = cpd.Reduce(
    "e4m3",
    accumulator=_accumulator(),
    order="ring",
    group_size=2,
    rounding="stochastic",
)


def _sum(**changes: Any) -> dict[str, Any]:
    return {"accumulator": _accumulator(**changes)}


DIFFERENCES: dict[str, dict[str, Any]] = {
    "format": {"codec": cpd.Format("e5m2")},
    "bias": {"codec": cpd.Format(exp=4, man=3, bias=8)},
    "subnormals": {"codec": cpd.Format(exp=4, man=3, subnormals=False)},
    "rounding": {"rounding": "toward_zero"},
    "overflow": {"overflow": "saturate"},
    "random_bits": {"random_bits": 8},
    "variant": {"variant": "B"},
    "sum's format": _sum(format="e6m9"),
    "sum's scheme": {"accumulator": cpd.Accumulator("e5m10 kahan")},
    "sum's inner format": _sum(inner="e5m10"),
    "sum's chunk": _sum(chunk=5),
    "sum's rounding": _sum(rounding="up"),
    "sum's overflow": _sum(overflow="saturate"),
    "result": {"result": cpd.Format("fp32")},
    "order": {"order": "sequential"},
    "exchange": {"exchange": "hierarchical"},
    "group_size": {"group_size": 1},
    "aps": {"aps": True},
    "aps's exponent": {"aps": "paper"},
    "loss_scale": {"loss_scale": 2.0},
    "average": {"average": True},
    "divide": {"average": True, "divide": "before"},
}
SAID = {
    "format": "wire is format e4m3 on rank 0 and format e5m2 on",
    "codec": "wire is format e4m3 on rank 0 and codec qsgd",
    "aps": "aps is off on rank 0 and on on",
    "aps's exponent": "aps is off on rank 0 and paper on",
    "loss_scale": "loss_scale is 2^0 on rank 0 and 2^1 on",
    "group_size": "group_size is 2 on rank 0 and 1 on",
    "operation": "operation is all_reduce on rank 0 and reduce_scatter on",
    "barrier": "operation is all_gather on rank 0 and barrier on",
    "barrier and sum": "operation is all_reduce on rank 0 and barrier on",
}
"""For some kinds of mismatch between ranks, the phrase that the error's text must contain."""


def mismatches(comm: Communicator) -> dict[str, str]:
    """Makes calls in which the last rank differs from the others, for example by its spec. Returns
    the Mismatch error of each call, and under 'after' '' if the communicator then still works."""
    odd = comm.rank == comm.size - 1
    x = [np.ones(5, np.float32), np.ones(3, np.float32)]
    texts = {}
    for name, change in DIFFERENCES.items():
        spec = BASE.replace(**change) if odd else BASE
        texts[name] = _mismatch(lambda spec=spec: comm.all_reduce(x, spec, step=0))
    fewer, shorter = x[:1], [x[0], x[1][:2]]
    swapped = [x[1], x[0]]
    for name, other in (("layers", fewer), ("a size", shorter), ("sizes' order", swapped)):
        texts[name] = _mismatch(lambda y=other: comm.all_reduce(y if odd else x, BASE))
    texts["report"] = _mismatch(lambda: comm.all_reduce(x, BASE, report=odd))
    texts["operation"] = _mismatch(
        lambda: comm.reduce_scatter(x, BASE) if odd else comm.all_reduce(x, BASE)
    )
    texts["root"] = _mismatch(lambda: comm.reduce(x, BASE, root=int(odd)))
    texts["gathered format"] = _mismatch(lambda: comm.all_gather(x, "e4m3" if odd else "e5m2"))
    texts["barrier"] = _mismatch(lambda: comm.barrier() if odd else comm.all_gather(x))
    texts["barrier and sum"] = _mismatch(
        lambda: comm.barrier() if odd else comm.all_reduce(x, BASE)
    )
    coded = cpd.Reduce("qsgd bits=4 bucket=64")
    texts["codec"] = _mismatch(lambda: comm.all_reduce(x, coded if odd else BASE))
    texts["bytes"] = _mismatch(lambda: comm.barrier() if odd else comm.all_gather_bytes(b"12"))
    total = comm.all_reduce(x, BASE.replace(codec="fp32", result="fp32"))
    texts["after"] = "" if total[0].tolist() == [comm.size] * 5 else f"wrong sum: {total}"
    return texts


def _mismatch(call: Any) -> str:
    try:
        call()
    except Mismatch as error:
        return str(error)
    return "no Mismatch was raised"


def refusals(comm: Communicator) -> dict[str, list[str]]:
    """Lets the last rank pass wrong arguments, which Python refuses, in one call after another.
    Returns two texts a call: this rank's error, and the next sum's error ('' if none)."""
    odd = comm.rank == comm.size - 1
    x = [np.ones(4, np.float32), np.ones(3, np.float32)]
    spec, empty = cpd.Reduce("fp32"), np.empty(0, np.float32)
    calls: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {}
    for name, layers, options in (
        ("dtype", [x[0].astype(np.float64), x[1]], {}),
        ("no list", x[0], {}),
        ("no layer", [x[0], "…" * 5000], {}),
        ("out's shape", x, {"out": [empty, x[1].copy()]}),
        ("out's layers", x, {"out": x[:1]}),
        ("out's overlap", x, {"out": [x[0], x[0][:3]]}),
        ("report", x, {"report": "yes"}),
    ):
        calls[name] = (
            lambda layers=layers, options=options: comm.all_reduce(layers, spec, **options, step=0),
            lambda: comm.all_reduce(x, spec, step=0),
        )
    calls |= {
        "spec": (lambda: comm.all_reduce(x, 3), lambda: comm.barrier()),
        "root": (
            lambda: comm.reduce(x, spec, comm.size, step=0),
            lambda: comm.reduce(x, spec, step=0),
        ),
        "scattered": (
            lambda: comm.reduce_scatter(x, spec, out=[empty, empty, empty], step=0),
            lambda: comm.reduce_scatter(x, spec, step=0),
        ),
        "gathered format": (lambda: comm.all_gather(x, "e99m1"), lambda: comm.all_gather(x)),
        "gathered rounding": (
            lambda: comm.all_gather(x, "fp32 \ud800"),
            lambda: comm.all_gather(x),
        ),
    }
    calls["bytes"] = (lambda: comm.all_gather_bytes(x), lambda: comm.all_gather_bytes(b"1"))
    told = {}
    for name, (wrong, right) in calls.items():
        told[name] = [_error(wrong if odd else right), _error(lambda: _check_sum(comm))]
    return told


def _check_sum(comm: Communicator) -> None:
    total = comm.all_reduce([np.ones(4, np.float32)], cpd.Reduce("fp32"))[0].tolist()
    if total != [comm.size] * 4:
        raise ArithmeticError(f"wrong sum: {total}")


def _error(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
    return ""


def check_refusals(ranks: list[dict[str, list[str]]]) -> None:
    """Asserts that the last rank raised its own errors, that the other ranks raised Mismatch errors
    with the same text, and that all later sums were right."""
    *others, odd = ranks
    assert len(odd) == 13
    for name, (own, after) in odd.items():
        assert own.startswith(("TypeError: ", "ValueError: ")), (name, own)
        assert after == "", name
        for other in others:
            assert other[name] == [f"Mismatch: rank {len(others)} refuses: {own}", ""], name


def every_check(comm: Communicator, count: int) -> dict[str, Any]:
    """Returns the results of the functions compare, others, mismatches and refusals, by name."""
    return {
        "compare": compare(comm, 0, count),
        "others": others(comm),
        "mismatches": mismatches(comm),
        "refusals": refusals(comm),
    }


# ---- ranks that are lost -------------------------------------------------------------------------

FAULT_SIZES = (2500, 0, 700)
FAULT_CHUNK = 1000  # several chunks a call


@dataclasses.dataclass
class Fault:
    kind: str  # kill, stop, drop
    phase: str  # handshake, exponents, exchange, fold, gather
    victim: int  # the failing rank's number among the ranks that are left
    exchange: str = "owner"


def fault_spec(exchange: str) -> cpd.Reduce:
    group_size = 2 if exchange == "hierarchical" else None
    order = "ring" if exchange in ("ring", "hierarchical") else "sequential"
    return cpd.Reduce("e4m3", aps=True, order=order, exchange=exchange, group_size=group_size)


def leaves_by_error(comm: Communicator) -> dict[str, Any]:
    """Rank 1 leaves the communicator's `with` block by raising an exception. Returns the error that
    this rank raises, and the seconds until then."""
    begin = time.monotonic()
    try:
        with comm:
            comm.barrier()
            if comm.rank == 1:
                raise KeyError("rank 1's own")
            comm.all_reduce([np.ones(5, np.float32)], cpd.Reduce("fp32"))
    except (KeyError, RankLost) as error:
        return {"said": f"{type(error).__name__}: {error}", "took": time.monotonic() - begin}
    return {"said": "nothing", "took": time.monotonic() - begin}


def ends_by_error(comm: Communicator) -> dict[str, Any]:
    """An uncaught exception ends rank 1's program outside the communicator's `with` block. Returns
    another rank's error and the seconds until that error. The error may come from the barrier, if
    that rank is slow."""
    begin = time.monotonic()
    try:
        comm.barrier()
        if comm.rank == 1:
            raise KeyError("rank 1's own")
        comm.all_reduce([np.ones(5, np.float32)], cpd.Reduce("fp32"))
    except RankLost as error:
        return {"said": str(error), "took": time.monotonic() - begin}
    return {"said": "nothing", "took": time.monotonic() - begin}


def faults(comm: Communicator, plan: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Makes one rank fail after another. After each failure, the survivors continue as a group.
    Returns what this rank recorded of each failure, until it failed itself."""
    seen: list[dict[str, Any]] = []
    for number, fault in enumerate(Fault(**one) for one in plan):
        spec = fault_spec(fault.exchange)
        mine = layers_of(comm.rank, FAULT_SIZES, number)
        at_chunk = 1 if fault.phase in ("exchange", "fold", "gather") else 0

        def strike(
            phase: str, chunk: int, rank: int, drop: Any, fault: Fault = fault, at: int = at_chunk
        ) -> None:
            if (phase, chunk, rank) == (fault.phase, at, fault.victim):
                if fault.kind == "drop":
                    drop()
                else:
                    os.kill(
                        os.getpid(), {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[fault.kind]
                    )

        comm.barrier()
        _core.set_fault_hook(strike)
        begin = time.monotonic()
        record: dict[str, Any] = {}
        try:
            total = comm.all_reduce(mine, spec, step=0)
            # If a rank fails after it has sent all its data, only the barrier raises an error.
            record["finished"] = same(total, virtual(spec, comm.size, FAULT_SIZES, number)[0])
            begin = time.monotonic()
            comm.barrier()
        except RankLost as error:
            record |= {"lost": error.ranks, "text": str(error)}
        record["took"] = time.monotonic() - begin
        _core.set_fault_hook(None)
        record["untouched"] = same(mine, layers_of(comm.rank, FAULT_SIZES, number))
        seen.append(record)
        if comm.rank == fault.victim:
            return seen
        record["broken"] = comm.broken
        comm = comm.subgroup([rank for rank in range(comm.size) if rank != fault.victim])
        wanted, _ = virtual(spec, comm.size, FAULT_SIZES, number)
        got = comm.all_reduce(layers_of(comm.rank, FAULT_SIZES, number), spec, step=0)
        record["works"] = same(got, wanted)
    return seen
