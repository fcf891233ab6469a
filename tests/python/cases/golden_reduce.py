# SPDX-License-Identifier: Apache-2.0
"""Golden cases of all-reduce: over virtual ranks, over threads, its round-off and its cost."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import cpd
from cpd.study.costs import transfer_seconds
from golden import Cases, Make, error_of, floats, numpy, recorded
from patience import scaled

SIZES = (33, 1, 0, 20)
DRAW = "rounding=stochastic random_bits=8"


def layers_of(rank: int, make: Make = numpy) -> list[Any]:
    """One rank's layers, a scale for each."""
    return [
        make(floats((n,), 200 + 8 * rank + i, -3 - 4 * i, 2 - 3 * i)) for i, n in enumerate(SIZES)
    ]


def ranks(world: int, make: Make = numpy) -> list[list[Any]]:
    return [layers_of(rank, make) for rank in range(world)]


Numbered = tuple[cpd.Reduce, dict[str, int]]
"""An all-reduce, and the seed and the step of its call."""


def specs() -> dict[str, Numbered]:
    """Every order, with and without groups, Kahan, APS, stochastic rounding and the average."""
    found: dict[str, Numbered] = {}
    for order, group, kahan, aps, stochastic, average in itertools.product(
        ("sequential", "ring", "tree"), (None, 2, 3), *[(False, True)] * 4
    ):
        if (kahan and order == "tree") or (average and not (kahan and aps)):
            continue
        text = f"e4m3 {'kahan' if kahan else 'sequential'} {DRAW if stochastic else ''}".strip()
        options: dict[str, Any] = {"order": order, "group_size": group, "average": average}
        if stochastic:
            options |= {"rounding": "stochastic", "random_bits": 8}
        name = f"{order} {group or 'plain'} {text}{' aps' * aps}{' average' * average}"
        numbers = {"seed": 2**63 + 1, "step": 7} if stochastic else {}
        found[name] = cpd.Reduce("e4m3", accumulator=text, aps=aps, **options), numbers
    return found


def more_specs() -> dict[str, Numbered]:
    """Formats, accumulators, scalings and policies."""
    given: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
        name: ((name,), {"aps": True})
        for name in (
            "e3m0",
            "e2m1",
            "e4m3fn",
            "e5m2fnuz",
            "binary8p4se",
            "e5m2:nosub",
            "fp16",
            "bf16",
        )
    }
    given |= {
        "fp32": (("fp32",), {}),
        "paper": (("e4m3",), {"aps": "paper"}),
        "paper up": (("e4m3", "e4m3 sequential rounding=up"), {"aps": "paper", "rounding": "up"}),
        "aps up": (("e4m3", "e4m3 sequential rounding=up"), {"aps": True, "rounding": "up"}),
        "loss scale": (("e4m3",), {"loss_scale": 2.0**9, "overflow": "saturate"}),
        "wide": (("e4m3", "fp32"), {}),
        "wide result": (("e4m3", "e6m9 kahan"), {"result": "e5m10", "group_size": 2}),
        "chunked": (("e5m2", "e6m9 chunked chunk=2 inner=e5m5"), {"group_size": 3}),
        "pairwise": (("e5m2", "e5m2 pairwise"), {"order": "ring"}),
        "to odd": (("e4m3", "e6m9 sequential rounding=to_odd"), {"order": "tree"}),
        "variant": (
            ("e4m3", "e4m3 sequential rounding=stochastic random_bits=4 variant=B"),
            {"rounding": "stochastic", "random_bits": 4, "variant": "C"},
        ),
    }
    return {
        name: (
            cpd.Reduce(args[0], accumulator=args[1] if args[1:] else None, **options),
            {"step": 2**24 - 1} if name == "variant" else {},
        )
        for name, (args, options) in given.items()
    }


def _joined(layers: list[Any]) -> Any:
    return np.concatenate([np.asarray(layer).reshape(-1) for layer in layers])


def _told(reports: list[cpd.comm.TensorReport]) -> str:
    return " ".join(
        f"{one.shift},{one.non_finite},{one.overflowed},{one.underflowed}" for one in reports
    )


def simulate_all_reduce_cases(make: Make) -> Cases:
    for name, (spec, numbers) in specs().items():
        sums, reports = cpd.simulate_all_reduce(ranks(5, make), spec, report=True, **numbers)
        yield name, (_joined(sums), _told(reports))
    for world, (name, (spec, numbers)) in itertools.product((4, 7), more_specs().items()):
        sums, reports = cpd.simulate_all_reduce(ranks(world, make), spec, report=True, **numbers)
        yield f"{name} of {world}", (_joined(sums), _told(reports))
    special = ranks(4)
    for rank, value in enumerate((np.nan, np.inf, -np.inf, -0.0)):
        special[rank][0][[rank, 8, 9 + rank // 2]] = value
        special[rank][1][:] = -0.0
    given = [[make(layer) for layer in layers] for layers in special]
    for aps in (False, True, "paper"):
        spec = cpd.Reduce("e4m3", accumulator="e4m3 kahan", aps=aps)  # type: ignore[arg-type]
        sums, reports = cpd.simulate_all_reduce(given, spec, report=True)
        yield f"specials aps {aps}", (_joined(sums), _told(reports))
    half = [[make(layer.astype(np.float16)) for layer in layers] for layers in ranks(3)]
    yield "float16", _joined(cpd.simulate_all_reduce(half, cpd.Reduce("e4m3")))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        many = [[make(floats((5,), 300 + rank))] for rank in range(40)]
        sums = cpd.simulate_all_reduce(many, cpd.Reduce("e4m3"))
    yield "stall", (_joined(sums), str([str(one.message) for one in caught]))
    schedule = cpd.Schedule(
        more_specs()["variant"][0],
        exempt=["*.bias"],
        exempt_spec=cpd.Reduce("bf16"),
        first_steps=2,
    )
    names = ["a.weight", "a.bias", "b.bias", "b.weight"]
    for step in (0, 2, 3):
        sums, reports = cpd.simulate_all_reduce(
            ranks(3, make), schedule, names=names, step=step, report=True
        )
        yield f"schedule step {step}", (_joined(sums), _told(reports))


# ---- over threads --------------------------------------------------------------------------------


def _over(world: int, call: Callable[[Any], Any], chunk: int = 1 << 20, seed: int = 0) -> Any:
    """Returns what `call` gives on every rank, which must be the same but for the last part, or a
    list."""
    with cpd.comm.local(world, seed=seed, timeout=scaled(60), chunk=chunk) as group:
        return group.run(call)


def _traffic(traffic: Any) -> str:
    return ",".join(str(value) for value in dataclasses.astuple(traffic)[:5])


def _all_reduce(
    world: int, spec: cpd.Reduce, make: Make, chunk: int, seed: int = 0, step: int = 0
) -> tuple[Any, ...]:
    def call(comm: Any) -> tuple[Any, str, str]:
        sums, report = comm.all_reduce(layers_of(comm.rank, make), spec, report=True, step=step)
        return _joined(sums), _told(report.tensors), _traffic(report.traffic)

    found = _over(world, call, chunk, seed)
    assert len({(recorded(sums), told) for sums, told, _ in found}) == 1
    return (*found[0][:2], " ".join(traffic for _, _, traffic in found))


def ways() -> list[dict[str, Any]]:
    """Every exchange with the orders that it can have, without and with groups."""
    exchanges = itertools.product(("sequential", "ring", "tree"), ("owner", "gather"), (None, 2, 3))
    found: list[dict[str, Any]] = [
        {"order": order, "exchange": exchange, "group_size": group}
        for order, exchange, group in exchanges
    ]
    found.append({"order": "ring", "exchange": "ring"})
    return found + [
        {"order": "ring", "exchange": "hierarchical", "group_size": group} for group in (1, 2, 3)
    ]


def _sums(way: dict[str, Any]) -> dict[str, Numbered]:
    kahan = "sequential" if way["order"] == "tree" else "kahan"
    drawing = f"e4m3 {kahan} {DRAW}"
    options: dict[str, Any] = {"rounding": "stochastic", "random_bits": 8}
    return {
        "plain": (cpd.Reduce("e3m0", accumulator="e6m9", **way), {}),
        "aps": (cpd.Reduce("e4m3", aps=True, average=True, **way), {}),
        "drawing": (
            cpd.Reduce("e5m2", accumulator=drawing, aps=True, **options, **way),
            {"seed": 9, "step": 3},
        ),
    }


def communicator_cases(make: Make) -> Cases:
    for way in ways():
        label = " ".join(str(value) for value in way.values())
        for name, (spec, numbers) in _sums(way).items():
            chunk = 16 if name == "drawing" else 1 << 20
            yield f"{label} {name}", _all_reduce(4, spec, make, chunk, **numbers)
    for name, (spec, numbers) in more_specs().items():
        yield f"{name} of 3", _all_reduce(3, spec, make, 8, **numbers)
    for world in (1, 2):
        yield f"ranks {world}", _all_reduce(world, cpd.Reduce("e4m3", aps=True), make, 8)
    yield from _other_calls(make)
    yield from _numbered(make)


def _other_calls(make: Make) -> Cases:
    spec, numbers = more_specs()["variant"]

    def calls(comm: Any) -> dict[str, Any]:
        given = layers_of(comm.rank, make)
        total, report = comm.reduce(given, spec, 1, report=True, **numbers)
        parts, scattered = comm.reduce_scatter(given, spec, report=True, **numbers)
        comm.seed = 3
        gathered = comm.all_gather(given, "e4m3 stochastic", step=0)
        comm.barrier()
        return {
            "reduce": (None if total is None else _joined(total), _traffic(report.traffic)),
            "reduce_scatter": (_joined(parts), _traffic(scattered.traffic)),
            "all_gather": _joined([_joined(one) for one in gathered]),
        }

    for rank, found in enumerate(_over(3, calls)):
        for name, value in found.items():
            yield f"{name} rank {rank}", value


def _numbered(make: Make) -> Cases:
    """The streams of layers with given numbers, as the hook of DDP and schedules give them."""
    spec, numbers = more_specs()["variant"]

    def chosen(comm: Any) -> Any:
        layers = layers_of(comm.rank, make)
        first, last = comm.all_reduce([layers[0], layers[3]], spec, numbers=[2, 5], **numbers)
        empty = first[:0].reshape(-1)[:0]
        return _joined([empty, empty, first, empty, empty, last])

    yield "numbered 2 5", _over(3, chosen)[0]
    schedule = cpd.Schedule(spec, exempt=["b*"], first_steps=1)

    def scheduled(comm: Any) -> Any:
        names = ["a", "b", "c", "d"]
        layers = layers_of(comm.rank, make)
        steps = [comm.all_reduce(layers, schedule, names=names, step=step) for step in (0, 1)]
        return _joined([_joined(sums) for sums in steps])

    yield "schedule", _over(3, scheduled)[0]


# ---- what the ranks are told ---------------------------------------------------------------------


def mismatch_cases(make: Make) -> Cases:
    """The text where rank 1 does something else."""
    base: dict[str, Any] = {"format": "e4m3", "accumulator": "e4m3 kahan"}
    others: dict[str, dict[str, Any]] = {
        "format": {"format": "e5m2", "result": "e4m3"},
        "accumulator": {"accumulator": "e4m3 sequential"},
        "accumulator rounding": {"accumulator": "e4m3 kahan rounding=up"},
        "chunked": {"accumulator": "e4m3 chunked chunk=2"},
        "order": {"order": "ring"},
        "exchange": {"exchange": "gather"},
        "group_size": {"group_size": 2},
        "aps": {"aps": True},
        "loss_scale": {"loss_scale": 4.0},
        "average": {"average": True},
        "rounding": {"rounding": "up"},
        "overflow": {"overflow": "saturate"},
        "random_bits": {"random_bits": 3},
        "variant": {"variant": "B"},
        "result": {"result": "fp32"},
    }

    def differ(call: Callable[[Any], Any]) -> Any:
        told = _over(2, lambda comm: error_of(lambda: call(comm)))
        assert told[0] == told[1] or "error" not in told[0], told
        return told

    for name, other in others.items():
        draws = {"rounding": "stochastic"} if name in ("random_bits", "variant") else {}
        given = [{**base, **draws, **one} for one in ({}, other)]
        spec = [cpd.Reduce(one.pop("format"), **one) for one in given]
        yield f"{name}", differ(lambda c, s=spec: c.all_reduce(layers_of(c.rank, make), s[c.rank]))
    spec = cpd.Reduce("e4m3")
    x = make(floats((4,), 1))
    yield "layers", differ(lambda c: c.all_reduce([x] * (1 + c.rank), spec, step=0))
    yield "sizes", differ(lambda c: c.all_reduce([x[: 4 - c.rank]], spec, step=0))
    yield "report", differ(lambda c: c.all_reduce([x], spec, report=bool(c.rank), step=0))
    yield "root", differ(lambda c: c.reduce([x], spec, c.rank, step=0))
    yield (
        "call",
        differ(
            lambda c: c.reduce([x], spec, step=0) if c.rank else c.all_reduce([x], spec, step=0)
        ),
    )
    yield (
        "barrier",
        differ(lambda c: c.barrier() if c.rank else c.all_reduce([x], spec, step=0)),
    )
    yield "refused", differ(lambda c: c.all_reduce([x], None if c.rank else spec))
    yield "all_gather", differ(lambda c: c.all_gather([x], "e5m2" if c.rank else "e4m3"))


# ---- study ---------------------------------------------------------------------------------------


def study_cases(make: Make) -> Cases:
    """Round-off and recommendations, numbers as hexadecimal floats."""
    given = [
        [make(floats((n,), 400 + 4 * rank + i)) for i, n in enumerate((90, 31))]
        for rank in range(8)
    ]
    for name in ("e4m3", "e5m2fnuz", "fp16"):
        for order in ("sequential", "ring", "tree"):
            for average in (False, True):
                spec = cpd.Reduce(name, order=order, aps=order == "ring", average=average)
                table = cpd.study.roundoff(given, spec, [1, 2, 3, 8], per_tensor=True)
                shown = {
                    str(size): [_figures(one) for one in found] for size, found in table.items()
                }
                yield f"{name} {order}{' average' * average}", shown
    spec = cpd.Reduce("e5m2", accumulator="e5m2 kahan", order="ring", aps=True)
    total = cpd.study.roundoff(given, spec, [2, 8])
    yield "all layers", {str(size): _figures(one) for size, one in total.items()}
    best = cpd.study.recommend(given, spec, [2, 4, 8], "alpha=1e-5 beta=1e9")
    yield "recommend", [_choice(one) for one in (*best.choices, *best.owner)]
    named = [_choice(one) for one in (best.most_exact, best.fastest, best.balanced)]
    yield "recommend named", [str(best.draws), best.owner_seconds.hex(), *named]
    over = _over(8, lambda comm: cpd.study.roundoff(given[comm.rank], spec, [2, 8], comm=comm))
    yield "over ranks", {str(size): _figures(one) for size, one in over[3].items()}


def _figures(one: Any) -> str:
    return " ".join(
        value.hex() if isinstance(value, float) else str(value)
        for value in dataclasses.astuple(one)
    )


def _choice(one: Any) -> str:
    spread = "none" if one.spread is None else one.spread.hex()
    shown = one.group_size, one.exchange, one.steps, one.bytes_sent, one.seconds.hex(), spread
    return " ".join(str(value) for value in (*shown, _figures(one.roundoff)))


def cost_cases(make: Make) -> Cases:
    """Steps, bytes sent and bytes received, and the modeled seconds."""
    machine = cpd.study.Machine("alpha=1e-6 beta=1e9")
    for way in ways():
        label = " ".join(str(value) for value in way.values())
        for name, world in (("e4m3", 4), ("e2m1", 7), ("e6m9", 16), ("fp32", 3)):
            spec = cpd.Reduce(name, **way)
            chunk = 100 if name in ("e4m3", "e2m1") else 1 << 20
            counts = [
                dataclasses.astuple(cpd.study.cost(spec, world, [1000, 3, 0], rank, chunk=chunk))
                for rank in (0, 1, world - 1)
            ]
            shown = "; ".join(" ".join(map(str, one)) for one in counts)
            seconds = transfer_seconds(spec, machine, world, [1000, 3])
            yield f"{label} {name} {world}", f"{shown}; {seconds.hex()}"
