# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.comm` over ranks that are threads: the bits of results, the checks of arguments,
reports and errors. test_comm_ranks.py tests ranks that are processes."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import pytest

import comm_cases
import cpd
from cpd.comm import Communicator, Mismatch, RankLost
from patience import scaled

FP32 = cpd.Reduce("fp32")
pytestmark = [
    pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning"),
    pytest.mark.timeout(120),
]


def run(world, function, **options):
    with cpd.comm.local(world, timeout=scaled(60), **options) as group:
        return group.run(function)


def first(world, function, **options):
    """Runs a function on all ranks, asserts that the results are equal, and returns rank 0's."""
    results = run(world, function, **options)
    assert all(repr(result) == repr(results[0]) for result in results)
    return results[0]


# ---- bits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 8])
def test_all_reduce_is_the_virtual_ranks(world):
    """An all-reduce over threads has simulate_all_reduce's bits, for all orders, exchanges and
    group sizes. Formats, accumulators and scalings are random; inputs include NaN and infinity."""
    count = (2 if world < 5 else 1) * len(comm_cases.ways(world))
    assert len(first(world, lambda c: comm_cases.compare(c, 0, count), chunk=4096)) == 1


@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_chunks_do_not_change_the_bits(chunk):
    spec = cpd.Reduce("e4m3", accumulator=cpd.Accumulator("e5m10 kahan"), order="ring", aps=True)
    wanted, _ = comm_cases.virtual(spec, 3, (100, 0, 31), 1)
    for got in run(
        3, lambda c: c.all_reduce(comm_cases.layers_of(c.rank, (100, 0, 31), 1), spec), chunk=chunk
    ):
        assert comm_cases.same(got, wanted)


@pytest.mark.exhaustive
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("world", range(1, 10))
def test_many_specs(world):
    assert len(first(world, lambda c: comm_cases.compare(c, 1000, 300), chunk=4096)) == 1


@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_other_operations(world):
    assert run(world, comm_cases.others) == [[]] * world


# ---- what layers may be --------------------------------------------------------------------------


def kinds_of_layers():
    """Returns pairs of a description and a list of layers: the same values in several array types
    and memory layouts."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(7)
    x = rng.integers(-8, 9, (6, 4)).astype(np.float32)
    raw = np.zeros(x.nbytes + 1, np.uint8)
    unaligned = raw[1:].view(np.float32).reshape(6, 4)
    unaligned[...] = x
    assert not unaligned.flags.aligned
    padded = np.zeros((6, 9), np.float32)
    padded[:, ::2][:, :4] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    tensor = torch.from_numpy(x.copy())
    return x, {
        "array": x,
        "float16": x.astype(np.float16),
        "Fortran order": np.asfortranarray(x),
        "steps": padded[:, ::2][:, :4],
        "backwards": x[::-1].copy()[::-1],
        "unaligned": unaligned,
        "read-only": read_only,
        "tensor": tensor,
        "bfloat16": tensor.bfloat16(),
        "half": tensor.half(),
        "transposed": tensor.t().contiguous().t(),
        "wants a gradient": tensor.clone().requires_grad_(),
        "negative view": torch._neg_view(-tensor),
    }


def test_kinds_of_layers():
    x, kinds = kinds_of_layers()

    def reduce_all(comm):
        return comm.all_reduce(list(kinds.values()), FP32)

    for results in run(2, reduce_all):
        for (what, layer), got in zip(kinds.items(), results, strict=True):
            assert type(got) is type(layer), what
            assert str(got.dtype).endswith("float32"), what
            assert tuple(got.shape) == x.shape, what
            assert np.array_equal(np.asarray(got), 2 * x), what
    for layer in kinds.values():
        values = layer.detach().resolve_neg().float().numpy() if hasattr(layer, "detach") else layer
        assert np.array_equal(values, x)  # the input is unchanged


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    layers = [np.arange(5).astype(ml_dtypes.bfloat16)]
    for (got,) in run(3, lambda c: c.all_reduce(layers, FP32)):
        assert got.dtype == np.float32
        assert got.tolist() == [0, 3, 6, 9, 12]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_few_values(world):
    empty = np.empty((3, 0), np.float32)
    scalar = np.full((), 1.5, np.float32)

    def calls(comm):
        assert comm.all_reduce([], FP32) == []
        assert comm.reduce_scatter([], FP32) == []
        assert comm.all_gather([]) == [[]] * world
        nothing, one = comm.all_reduce([empty, scalar], cpd.Reduce("e4m3", aps=True))
        assert nothing.shape == (3, 0)
        assert one.shape == ()
        assert one.item() == 1.5 * world
        (gathered, *_) = comm.all_gather([empty, scalar])
        assert [x.shape for x in gathered] == [(3, 0), ()]
        parts = comm.reduce_scatter([empty, scalar], FP32)
        assert [x.shape for x in parts] == [(0,), (int(comm.rank == 0),)]

    run(world, calls)


def test_out():
    def calls(comm):
        x = [np.full((2, 3), comm.rank, np.float32), np.ones(4, np.float32)]
        out = [np.empty((2, 3), np.float32), np.empty(4, np.float32)]
        got = comm.all_reduce(x, FP32, out=out)
        assert got[0] is out[0]
        assert got[1] is out[1]
        assert out[0].tolist() == [[1, 1, 1], [1, 1, 1]]
        assert x[0][0, 0] == comm.rank
        again = comm.all_reduce(x, FP32, out=x)
        assert again[1] is x[1]
        assert x[0][0, 0] == 1
        assert x[1].tolist() == [2, 2, 2, 2]
        part = [np.empty(3, np.float32), np.empty(2, np.float32)]
        comm.reduce_scatter(out, FP32, out=part)
        assert [p.tolist() for p in part] == [[2, 2, 2], [4, 4]]

    run(2, calls)


def test_out_as_tensors():
    torch = pytest.importorskip("torch")

    def calls(comm):
        x = [torch.ones(2, 3)]
        (got,) = comm.all_reduce(x, FP32, out=x)
        assert got is x[0]
        assert x[0].tolist() == [[2.0] * 3] * 2

    run(2, calls)


def bad_outs():
    x = [np.ones((2, 3), np.float32), np.ones(4, np.float32)]
    whole = np.zeros(12, np.float32)
    fixed = np.zeros(4, np.float32)
    fixed.flags.writeable = False
    fine = np.zeros((2, 3), np.float32)
    return {
        "out must have 2 tensors, got 1": (x, [fine]),
        r"out, tensor 1 must have shape \(4,\), got \(5,\)": (x, [fine, np.zeros(5, np.float32)]),
        "out, tensor 1 must be of type float32": (x, [fine, np.zeros(4, np.float16)]),
        "out, tensor 0 must be contiguous": (x, [np.zeros((3, 2), np.float32).T, x[1]]),
        "out, tensor 1 must be contiguous, aligned and writable": (x, [fine, fixed]),
        "out, tensor 1 overlaps out, tensor 0": (x, [whole[:6].reshape(2, 3), whole[5:9]]),
        "out, tensor 1 overlaps tensor 0": (
            [whole[:6].reshape(2, 3), x[1]],
            [fine, whole[2:6]],
        ),
        "out, tensor 0 overlaps tensor 1": (
            [x[0], whole[4:8]],
            [whole[:6].reshape(2, 3), np.zeros(4, np.float32)],
        ),
        "overlaps tensor": ([whole[:4], whole[4:8]], [whole[4:8], whole[:4]]),
    }


def test_bad_outs_are_refused():
    with cpd.comm.local(1) as group:
        for message, (layers, out) in bad_outs().items():
            before = [y.copy() for y in out]
            with pytest.raises((ValueError, TypeError), match=message):
                group.ranks[0].all_reduce(layers, FP32, out=out)
            assert all(map(np.array_equal, before, out))


def test_bad_arguments():
    x = [np.ones(3, np.float32)]
    with cpd.comm.local(1) as group:
        comm = group.ranks[0]
        for bad, error, message in (
            (x[0], TypeError, "tensors must be a list of tensors, got ndarray"),
            (3, TypeError, "tensors must be a list of tensors, got int"),
            ([1.0], TypeError, "tensor 0 must be a NumPy array or a torch tensor, got float"),
            (
                [x[0], np.ones(2)],
                TypeError,
                "tensor 1 must be of type float32, bfloat16 or float16",
            ),
            ([x[0].astype(">f4")], TypeError, "tensor 0 must be of type"),
        ):
            with pytest.raises(error, match=message):
                comm.all_reduce(bad, FP32)
            with pytest.raises(error, match=message):
                comm.all_gather(bad)
        with pytest.raises(TypeError, match="a format must be"):
            comm.all_reduce(x, 3)
        with pytest.raises(ValueError, match="root must be 0…0, got 1"):
            comm.reduce(x, FP32, root=1)
        with pytest.raises(TypeError, match="root must be an int"):
            comm.reduce(x, FP32, root=0.0)
        for ranks in ([], [1], [0, 0], [-1]):
            with pytest.raises(ValueError):  # noqa: PT011
                comm.subgroup(ranks)
        with pytest.raises(ValueError, match="exp must be"):
            comm.all_gather(x, "e99m1")
        with pytest.raises(TypeError, match="data must be bytes, got bytearray"):
            comm.all_gather_bytes(bytearray(3))
        assert comm.all_reduce(x, FP32)[0].tolist() == [1, 1, 1]  # the communicator still works


def test_devices_must_not_mix():
    torch = pytest.importorskip("torch")
    meta = torch.empty(3, device="meta")
    with cpd.comm.local(1) as group:
        with pytest.raises(ValueError, match="tensor 1 must be on the CPU or CUDA, got meta"):
            group.ranks[0].all_reduce([np.ones(3, np.float32), meta], FP32)
        with pytest.raises(TypeError, match="tensor 0 must be a dense tensor"):
            group.ranks[0].all_reduce([torch.eye(3).to_sparse()], FP32)


def test_options_of_communicators():
    for options, error in (
        ({"timeout": 0}, ValueError),
        ({"timeout": -1.0}, ValueError),
        ({"timeout": float("inf")}, ValueError),
        ({"timeout": "5"}, TypeError),
        ({"chunk": 0}, ValueError),
        ({"chunk": 1.5}, TypeError),
    ):
        with pytest.raises(error, match=next(iter(options))):
            cpd.comm.local(2, **options)
    for size, error in ((0, ValueError), (-1, ValueError), (1.0, TypeError)):
        with pytest.raises(error, match="size must be"):
            cpd.comm.local(size)
    with pytest.raises(ValueError, match="seed must be"):
        cpd.comm.local(2, seed=-1)
    with pytest.raises(TypeError, match=r"nccl\(\) takes comm= in place of id="):
        cpd.comm.nccl(id=b"", rank=0, size=1)
    with pytest.raises(TypeError, match=r"comm must be a cpd\.comm\.Communicator, got bytes"):
        cpd.comm.nccl(bytes(128))


# ---- reports and warnings ------------------------------------------------------------------------


def test_report():
    x = np.float32([1.0, 1e-30, 300.0, np.inf])
    spec = cpd.Reduce("e4m3")
    layers = [x, x[:3]]
    for _, report in run(3, lambda c: c.all_reduce(layers, spec, report=True)):
        bad, fine = report.tensors
        assert dataclasses.astuple(bad) == (0, 3, 0, 3, 12, 3, 12, (), 0)
        assert dataclasses.astuple(fine) == (0, 0, 1, 3, 9, 3, 9, (), 0)
        assert cpd.simulate_all_reduce([layers] * 3, spec, report=True)[1] == [bad, fine]


def test_traffic():
    """Reported traffic equals a count by hand. Among 4 ranks, 1000 values of 4 bits make slices of
    125 bytes. Each rank sends three slices to the ranks that sum them. It then sends the slice that
    it summed to three ranks."""
    x = [np.ones(1000, np.float32)]
    spec = cpd.Reduce("e2m1", accumulator="e5m10", result="e2m1")
    for _, report in run(4, lambda c: c.all_reduce(x, spec, report=True)):
        traffic = report.traffic
        assert traffic.steps == 6
        assert traffic.bytes_sent == traffic.bytes_received == 2 * 3 * 125
        assert traffic.messages >= 6
        assert traffic.header_bytes >= 16 * traffic.messages
    gathered = cpd.Reduce("e2m1", exchange="gather")
    for _, report in run(4, lambda c: c.all_reduce(x, gathered, report=True)):
        assert report.traffic.bytes_sent == 3 * 500
    for values, traffic in run(4, lambda c: c.all_gather(x, "e4m3", report=True)):
        assert len(values) == 4
        assert traffic.bytes_sent == traffic.bytes_received == 3 * 1000


def test_operations_that_move_less():
    x = [np.ones(4000, np.float32)]
    spec = cpd.Reduce("e4m3")

    def calls(comm):
        _, scattered = comm.reduce_scatter(x, spec, report=True)
        _, reduced = comm.reduce(x, spec, root=2, report=True)
        return scattered.traffic.bytes_sent, reduced.traffic.bytes_sent

    sent = run(4, calls)
    assert [s for s, _ in sent] == [3000] * 4
    assert [r for _, r in sent] == [4000, 4000, 3000, 4000]


def stalls(spec, world, call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(spec, world)
    return [str(w.message) for w in caught if w.category is cpd.PrecisionWarning]


@pytest.mark.parametrize("exchange", ["owner", "gather", "hierarchical"])
def test_groups_are_at_most_the_ranks(exchange):
    """If group_size exceeds the number of ranks, every rank raises an error before it sends
    anything, and can reduce again. Virtual ranks raise the same error."""
    spec = cpd.Reduce("e4m3", order="ring", exchange=exchange, group_size=16)
    layers = [np.ones(3, np.float32)]
    told = r"group_size must be 1…3 \(the ranks\), got 16"

    def work(comm):
        for call in (comm.all_reduce, comm.reduce, comm.reduce_scatter):
            with pytest.raises(ValueError, match=told):
                call(layers, spec)
        assert layers[0].tolist() == [1, 1, 1]
        whole = spec.replace(group_size=3)
        return comm.all_reduce(layers, whole)[0].tolist(), comm.broken

    assert run(3, work) == [([3.0, 3.0, 3.0], "")] * 3
    with pytest.raises(ValueError, match=told):
        cpd.simulate_all_reduce([layers] * 3, spec)


def simulated(spec, world):
    cpd.simulate_all_reduce([[np.ones(1, np.float32)]] * world, spec)


def over_threads(spec, world):
    with cpd.comm.local(world) as group:
        group.run(lambda comm: comm.all_reduce([np.ones(1, np.float32)], spec))


@pytest.mark.parametrize("call", [simulated, over_threads])
def test_a_sum_that_may_stall_warns(call):
    (said, *more) = stalls(cpd.Reduce("e3m0"), 3, call)
    assert len(more) == (0 if call is simulated else 2)  # each rank warns
    for part in ("3 ranks", "e3m0", "precision of 1 bits", "kahan", "group_size", "tree"):
        assert part in said
    for other in ({"order": "ring"}, {"group_size": 3}):
        assert set(stalls(cpd.Reduce("e3m0", **other), 3, call)) == {said}
    for fine in (
        {"order": "tree"},
        {"group_size": 2},
        {"accumulator": cpd.Accumulator("e3m0 kahan")},
        {"accumulator": "fp32"},
        {"accumulator": cpd.Accumulator("e3m0", rounding="stochastic")},
    ):
        assert stalls(cpd.Reduce("e3m0", **fine), 3, call) == []
    assert stalls(cpd.Reduce("e3m0"), 2, call) == []


def test_a_study_of_sums_that_may_stall_is_silent():
    ranks = [[np.ones(1, np.float32)]] * 3
    assert stalls(cpd.Reduce("e3m0"), 3, lambda s, k: cpd.study.roundoff(ranks, s, [k])) == []


def test_a_stall_is_what_the_warning_says():
    """The warning about stalled sums is exact. In a format of precision p, a sum of 2^p ones is
    right, and one more term does not change it."""
    for f, world in (("e3m0", 2), ("e4m3", 16), ("e5m2", 8)):
        one = [np.ones(1, np.float32)]
        assert stalls(cpd.Reduce(f), world, simulated) == []
        assert cpd.simulate_all_reduce([one] * world, cpd.Reduce(f))[0] == world
        assert len(stalls(cpd.Reduce(f), world + 1, simulated)) == 1
        assert cpd.simulate_all_reduce([one] * (world + 1), cpd.Reduce(f))[0] == world


@pytest.mark.parametrize("call", [simulated, over_threads])
def test_the_warning_points_at_the_caller(call):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(cpd.Reduce("e3m0"), 3)
    assert {w.filename for w in caught if w.category is cpd.PrecisionWarning} == {__file__}


# ---- ranks that disagree, and ranks that go ------------------------------------------------------


def test_differences_are_found_before_data_moves():
    texts = run(3, comm_cases.mismatches)
    assert texts[0] == texts[1] == texts[2]
    assert texts[0].pop("after") == ""
    for name, text in texts[0].items():
        assert text.startswith("the ranks do not agree"), name
        assert "on rank 0" in text, name
        assert "on rank 2" in text, name


def test_a_rank_that_is_silent_is_lost():
    x = [np.arange(5, dtype=np.float32)]
    timeout = scaled(1)
    with cpd.comm.local(3, timeout=timeout) as group:

        def calls(comm):
            if comm.rank == 1:
                return None
            begin = time.monotonic()
            with pytest.raises(RankLost, match=r"rank 1 of 3 lost in phase handshake") as caught:
                comm.all_reduce(x, FP32)
            assert timeout / 2 < time.monotonic() - begin < 5 * timeout
            assert caught.value.ranks == [1]
            assert "rank 1 of 3 lost" in comm.broken
            assert "rank 1 of 3 lost" in repr(comm)
            with pytest.raises(RankLost, match="rank 1 of 3 lost"):
                comm.barrier()
            with comm.subgroup([0, 2]) as rest:
                return rest.all_reduce(x, FP32)[0].tolist()

        assert group.run(calls) == [[0, 2, 4, 6, 8], None, [0, 2, 4, 6, 8]]
    assert x[0].tolist() == [0, 1, 2, 3, 4]


def test_a_rank_that_raises_takes_the_others_along():
    def calls(comm):
        if comm.rank == 1:
            raise KeyError("mine")
        comm.all_reduce([np.ones(5, np.float32)], FP32)

    timeout = scaled(60)
    begin = time.monotonic()
    group = cpd.comm.local(3, timeout=timeout)
    with pytest.raises(KeyError, match="mine") as caught:
        group.run(calls)
    assert time.monotonic() - begin < timeout / 2
    assert caught.value.__notes__ == ["(raised on rank 1 of 3)"]
    assert group.ranks[0].broken == "it is closed"


def test_a_refusal_reaches_all_ranks():
    """An error that only C++ raises on one rank makes all ranks raise an error."""
    x = [np.ones(3, np.float32)]

    def calls(comm):
        spec = cpd.Reduce("e4m3", exchange="gather" if comm.rank == 1 else "owner")
        with pytest.raises(ValueError, match=r"owner|do not agree|refuses"):
            comm.reduce_scatter(x, spec)
        return comm.all_reduce(x, FP32)[0].tolist()

    assert run(3, calls) == [[3, 3, 3]] * 3


def test_wrong_arguments_of_one_rank_reach_all():
    """An error that Python raises on one rank, before C++ is called, makes all ranks raise an
    error."""
    comm_cases.check_refusals(run(3, comm_cases.refusals))


@pytest.mark.parametrize("shapes", [((2, 3), (3, 2)), ((6,), (1, 6)), ((6, 1), (6,))])
@pytest.mark.parametrize("operation", ["all_reduce", "reduce", "reduce_scatter", "all_gather"])
def test_layers_of_other_shapes_are_refused_on_all_ranks(operation, shapes):
    """Layers must have equal shapes on all ranks, not just equal sizes. Virtual ranks demand the
    same."""

    def call(comm):
        layer = np.arange(6, dtype=np.float32).reshape(shapes[comm.rank])
        arguments = () if operation == "all_gather" else (FP32,)
        try:
            getattr(comm, operation)([np.ones(1, np.float32), layer], *arguments)
        except Mismatch as error:
            return str(error)
        return "no error"

    text = f"the shape of tensor 1 is {shapes[0]} on rank 0 and {shapes[1]} on rank 1"
    assert run(2, call) == [f"the ranks do not agree: {text}"] * 2


def test_a_refusal_that_nobody_hears():
    """If a rank raises an error and cannot inform the other ranks, a note on the error says so. The
    group is broken afterwards."""
    with cpd.comm.local(2, timeout=0.5) as group:
        with pytest.raises(TypeError, match="tensors must be a list") as caught:
            group.ranks[0].all_reduce(3, FP32)
        assert "the other ranks could not be told: rank 1 of 2 lost" in caught.value.__notes__[0]
        assert "rank 1 of 2 lost" in group.ranks[0].broken
        with pytest.raises(TypeError, match="tensors must be a list"):
            group.ranks[0].all_reduce(3, FP32)  # the other ranks are no longer informed


def test_errors_can_be_pickled():
    import pickle

    error = pickle.loads(pickle.dumps(RankLost("gone", [2, 3])))
    assert (str(error), error.ranks) == ("gone", [2, 3])
    failure = pickle.loads(pickle.dumps(cpd.comm.TransportError("gone", 1)))
    assert (str(failure), failure.peer) == ("gone", 1)
    assert issubclass(Mismatch, ValueError)
    assert issubclass(cpd.comm.TransportError, RuntimeError)


# ---- the object ----------------------------------------------------------------------------------


def test_properties_and_closing():
    group = cpd.comm.local(2, timeout=0.5, chunk=99)
    comm = group.ranks[1]
    assert (comm.rank, comm.size, comm.name) == (1, 2, "local")
    assert (comm.timeout, comm.chunk, comm.broken) == (0.5, 99, "")
    assert repr(comm) == "<cpd.comm.Communicator local, rank 1 of 2>"
    with comm as same:
        assert same is comm
    assert comm.broken == "it is closed"
    comm.close()
    with pytest.raises(ValueError, match="the communicator is closed"):
        comm.all_reduce([], FP32)
    assert (comm.rank, comm.size) == (1, 2)
    group.close()


def test_the_gil_is_let_go():
    """While a rank waits, it releases the GIL: another Python thread keeps working."""
    group = cpd.comm.local(2, timeout=scaled(60))
    threading.Timer(0.3, group.ranks[1].barrier).start()
    counted = 0

    def count():
        nonlocal counted
        end = time.monotonic() + 0.2
        while time.monotonic() < end:
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    group.ranks[0].barrier()
    thread.join()
    assert counted > 100


def test_calls_of_two_threads_take_turns():
    group = cpd.comm.local(2, timeout=scaled(60))
    spec = cpd.Reduce("fp32")
    x = [np.ones(1000, np.float32)]
    totals = []

    def calls(comm: Communicator) -> None:
        for _ in range(20):
            totals.append(comm.all_reduce(x, spec)[0][0])

    threads = [threading.Thread(target=calls, args=(c,)) for c in group.ranks for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert totals == [2.0] * 80


def test_import_is_light():
    """Importing cpd or cpd.comm does not load torch. Importing cpd does not load cpd.comm."""
    program = (
        "import sys, cpd\n"
        "assert 'cpd.comm' not in sys.modules\n"
        "cpd.comm.local(1).ranks[0].barrier()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(60))


def test_no_torch_group():
    pytest.importorskip("torch")
    with pytest.raises(ValueError, match="has no process group"):
        cpd.comm.distributed()
