# SPDX-License-Identifier: Apache-2.0
"""Measures the parts of a training step's time: computation, codec, messages and waiting.

Four ranks train a real model with the wire formats of Grubic et al., EDBT 2018, section 4. Each
rank is a host of its own (a network namespace) behind links of 1 Gb/s. The parts of a step, by rank
0's clock:

    computation   forward and backward pass
    waiting       the time until the slowest rank has finished its computation
    codec         casts, codes and sums: the processor time of the same all-reduce of four ranks
                  without a network, divided by four
    messages      the rest of the all-reduce

The results are medians over the steps. The ranks share this machine's cores, so computation, codec
and waiting take longer than on separate machines; but each rank has links of its own.

Run: ./dev run python benchmarks/training_step.py [--model NAME] [--width N] [--json FILE] Needs
root, iproute2 and Open MPI, and a build with MPI.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import all_reduce
import namespaces

RANKS = 4
PARTS = ("computation", "waiting", "codec", "messages")
HEAD = ["wire", *(f"{part}, ms" for part in PARTS), "step, ms", "times fp32's", "MB sent"]


def main() -> None:
    options = _options()
    if options.rank:
        _rank(options)
        return
    if why := namespaces.why_not():
        sys.exit(f"training_step: {why}")
    words = [str(Path(__file__).resolve()), "--rank"]
    words += ["--model", options.model, "--width", str(options.width)]
    words += ["--batch", str(options.batch), "--steps", str(options.steps)]
    rows = []
    with namespaces.hosts(RANKS, "1gbit") as hosts:
        for row in all_reduce.launch(hosts.mpirun(), [sys.executable, *words]):
            rows.append(row)
            print(_text(row, rows[0]), flush=True)
    if options.json is not None:
        options.json.write_text(_stored(options, rows), encoding="utf-8")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet18", help="of cpd_lab.train; default resnet18")
    parser.add_argument("--width", type=int, default=64, help="default 64, 11.2 M parameters")
    parser.add_argument("--batch", type=int, default=8, help="images a rank; default 8")
    parser.add_argument("--steps", type=int, default=5, help="timed, after one more; default 5")
    parser.add_argument("--json", type=Path, help="a file for the table")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


# ---- one rank ------------------------------------------------------------------------------------


def _rank(options: argparse.Namespace) -> None:
    """Trains with one wire format after another. Rank 0 prints a row for each."""
    import torch

    import cpd
    from cpd_lab.papers.studies.grubic import WIRES
    from cpd_lab.train import TrainOptions

    torch.set_num_threads(1)
    with cpd.comm.mpi() as comm:
        for label, wire in WIRES.items():
            chosen = TrainOptions(
                model=options.model, width=options.width, nodes=comm.size, batch=options.batch,
                wire=wire, quantized_share=0.99, divide="after",
            )  # fmt: skip
            row = _measured(chosen, comm, options.steps)
            if comm.rank == 0:
                print(json.dumps({"wire": label, **row}), flush=True)


def _measured(chosen: Any, comm: Any, steps: int) -> dict[str, float]:
    """Times training steps. Returns the milliseconds of each of PARTS, and the bytes that a rank
    sends in a step."""
    import torch

    from cpd.parallel.nodes.real import RealNode
    from cpd_lab.train.metrics import loss_of

    torch.manual_seed(comm.rank)
    model = chosen.make_model()
    x, y = torch.randn(chosen.batch, 3, 32, 32), torch.randint(10, (chosen.batch,))
    schedule = chosen.reduction(1)
    node = RealNode(model, comm, schedule)
    times: list[list[float]] = []
    own: dict[str, torch.Tensor] = {}

    def computed(rank: int, gradients: dict[str, torch.Tensor]) -> None:
        times[-1].append(time.perf_counter())
        comm.barrier()
        times[-1].append(time.perf_counter())
        own.update(gradients)

    for _ in range(steps + 1):
        comm.barrier()
        times.append([time.perf_counter()])
        node.step(lambda _: loss_of(model(x), y), micro_batches=[0], on_gradients=computed)
        times[-1].append(time.perf_counter())
    codec = _codec_seconds(schedule, own) if comm.rank == 0 else 0.0
    comm.barrier()
    spans = [[end - begin for begin, end in itertools.pairwise(t)] for t in times[1:]]
    computation, waiting, reduction = (statistics.median(part) for part in zip(*spans, strict=True))
    parts = (computation, waiting, min(codec, reduction), max(reduction - codec, 0.0))
    milliseconds = {name: 1e3 * part for name, part in zip(PARTS, parts, strict=True)}
    return milliseconds | {"bytes": _bytes_sent(schedule, own, comm.size)}


def _codec_seconds(schedule: Any, gradients: dict[str, Any]) -> float:
    """Returns the processor time in seconds that one rank needs for the all-reduce of these
    gradients. All ranks run as threads of this process, and their total time is divided by their
    number. Returns the minimum of three tries."""
    import cpd

    names, layers = list(gradients), list(gradients.values())

    def reduce(comm: Any) -> None:
        from cpd.compress.states import States

        comm.all_reduce(layers, schedule, names=names, step=0, states=States(), report=False)

    seconds = []
    for _ in range(3):
        world = cpd.comm.local(RANKS)
        begin = time.process_time()
        world.run(reduce)
        seconds.append((time.process_time() - begin) / RANKS)
    return min(seconds)


def _bytes_sent(schedule: Any, gradients: dict[str, Any], world: int) -> int:
    from cpd.study.costs import cost

    names, layers = list(gradients), list(gradients.values())
    parts = schedule._parts(names, 0, [layer.numel() for layer in layers])
    return sum(
        cost(spec, world, [tuple(layers[n].shape) for n in numbers]).bytes_sent
        for spec, numbers in parts
    )


# ---- the table -----------------------------------------------------------------------------------


def _cells(row: dict[str, Any], fp32: dict[str, Any]) -> list[str]:
    step, whole = (sum(timings[part] for part in PARTS) for timings in (row, fp32))
    times = [f"{row[part]:.1f}" for part in PARTS]
    return [row["wire"], *times, f"{step:.1f}", f"{whole / step:.2f}", f"{row['bytes'] / 1e6:.2f}"]


def _text(row: dict[str, Any], fp32: dict[str, Any]) -> str:
    head = "" if row is not fp32 else "  ".join(f"{name:>15}" for name in HEAD) + "\n"
    return head + "  ".join(f"{cell:>15}" for cell in _cells(row, fp32))


def _stored(options: argparse.Namespace, rows: list[dict[str, Any]]) -> str:
    """Returns the rows as JSON text, in the form in which `cpd study report --store` stores a
    study's results."""
    from cpd.study.processor import cpu_name
    from cpd_lab.papers.kinds import VERSION

    title = (
        f"A step of {options.model} (width {options.width}) on {RANKS} hosts behind links of "
        f"1 Gb/s, {options.batch} images each; medians of {options.steps}"
    )
    table = {"title": title, "head": HEAD, "rows": [_cells(row, rows[0]) for row in rows]}
    stored = {
        "study": "grubic-measured",
        "cpu": [f"{cpu_name()}, shared by the ranks"],
        "version": [VERSION],
        "tables": [table],
        "findings": [],
    }
    return json.dumps(stored, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    main()
