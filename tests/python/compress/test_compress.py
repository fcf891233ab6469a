# SPDX-License-Identifier: Apache-2.0
"""Codecs by themselves: texts, streams, what they keep; over formats, which every codec can be."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import struct
import threading

import numpy as np
import pytest

import cpd
from cpd import _core, compress
from cpd.compress.rows import RowLayout

FORMATS = ["e4m3", "e2m1", "fp32", "mxfp8", "nvfp4"]
X = np.random.default_rng(0).standard_normal((37, 129)).astype(np.float32)


@pytest.fixture(params=["numpy", "torch"])
def make(request):
    if request.param == "numpy":
        return np.array
    torch = pytest.importorskip("torch")
    return lambda x: torch.from_numpy(np.array(x))


# ---- values -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_as_codec_casts(name, make):
    packet = compress.codec(name).encode(make(X))
    assert type(packet.values) is type(make(X))
    wanted = np.asarray(cpd.cast(X.reshape(-1), name)).reshape(X.shape)
    assert np.array_equal(np.asarray(packet.values), wanted)
    assert np.array_equal(compress.decode(packet.data, X.shape), wanted)
    assert packet.size == X.size
    assert len(packet.data) > packet.bytes == round(packet.bits_a_value * X.size / 8)


def test_packets_are_copied_decoded_or_not(make):
    for decoded in (False, True):
        packet = compress.codec("int8_rows").encode(make(X.T))
        if decoded:
            assert packet.values is packet.values
        for twin in (copy.deepcopy(packet), pickle.loads(pickle.dumps(packet))):
            assert type(twin.values) is type(make(X))
            assert np.array_equal(np.asarray(twin.values), np.asarray(packet.values))
            assert (twin.data, twin.bytes, twin.shape) == (packet.data, packet.bytes, X.T.shape)


@pytest.mark.parametrize("outer", ["feedback", "quantized", "blockwise", "top_k 1 feedback=off"])
def test_a_scaled_format_saturates_within_a_codec(outer):
    inner = compress.codec("mxfp8").encode(X).values
    values = compress.codec(f"{outer} mxfp8").encode(X).values
    assert np.array_equal(values, inner)


def test_any_layout_and_type(make):
    e4m3 = compress.codec("e4m3")
    wanted = np.asarray(e4m3.encode(X).values)
    assert np.array_equal(np.asarray(e4m3.encode(make(X).T).values), wanted.T)
    half = e4m3.encode(make(X.astype(np.float16)))
    assert np.array_equal(half.values, e4m3.encode(X.astype(np.float16).astype(np.float32)).values)
    one = e4m3.encode(make(np.float32(3.2)))
    assert tuple(one.values.shape) == ()
    assert float(one.values) == 3.25
    none = e4m3.encode(make(np.zeros((0, 3), np.float32)))
    assert tuple(none.values.shape) == (0, 3)
    assert (none.bytes, none.bits_a_value) == (0, 0.0)


def test_a_shift_is_undone():
    x = np.float32([2.0**-20, 3.0 * 2.0**-20])
    e4m3 = compress.codec("e4m3")
    assert np.array_equal(e4m3.encode(x).values, [0, 0])
    shifted = e4m3.encode(x, shift=20)
    assert np.array_equal(shifted.values, x)
    assert np.array_equal(compress.decode(shifted.data), x)


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_are_those_of_the_whole(name):
    """The native codec: a piece decodes to what the whole layer does there."""
    held = compress.codec(name)._held
    flat = X.reshape(-1)
    wanted = compress.codec(name).encode(flat).values
    for begin, n in ((0, flat.size), (0, 1), (4096, 600), (64, 32), (flat.size, 0)):
        before = begin % held.bucket
        data = held.encode(flat, begin=begin, n=n)
        assert len(data) == held.most_bytes(n, before)
        assert np.array_equal(held.decode(data, n, before=before), wanted[begin : begin + n])
    with pytest.raises(ValueError, match="a piece must lie in the layer's"):
        held.encode(flat, begin=1, n=flat.size)


# ---- codecs are values --------------------------------------------------------------------------


def test_a_codec_is_a_value():
    codec = compress.codec("mxfp8", seed=2**64 - 1, random_bits=7)
    copies = [copy.copy(codec), copy.deepcopy(codec), pickle.loads(pickle.dumps(codec))]
    for other in [*copies, dataclasses.replace(codec), compress.codec(codec)]:
        assert other == codec
        assert hash(other) == hash(codec)
    assert dataclasses.replace(codec, seed=1) != codec
    assert str(codec) == codec.name == "mxfp8"
    assert eval(repr(codec), {"cpd": cpd}) == codec
    with pytest.raises(dataclasses.FrozenInstanceError):
        codec.seed = 3


def test_torch_loads_codecs_and_states(tmp_path):
    torch = pytest.importorskip("torch")
    kept = {"codec": compress.codec("mxfp8", seed=3), "states": compress.States()}
    torch.save(kept, tmp_path / "kept.pt")
    loaded = torch.load(tmp_path / "kept.pt", weights_only=True)
    assert loaded["codec"] == kept["codec"]
    assert loaded["states"].state_dict() == {"layers": []}


def test_the_table():
    assert compress.compressors() == tuple(compress.Compressor(*row) for row in _core.compressors())
    for one in compress.compressors():
        assert one.source
        assert one.summary


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: compress.codec("gzip"), ValueError, "'gzip' is no codec"),
        (lambda: compress.codec(""), ValueError, "is no codec"),
        (lambda: compress.codec(3), TypeError, "a codec must be a cpd.compress.Codec or its text"),
        (lambda: compress.codec("e4m3", random_bits=25), ValueError, "random_bits"),
        (lambda: compress.codec("e4m3", seed=-1), ValueError, "seed"),
        (lambda: compress.codec("e4m3", seed=1.0), TypeError, "seed"),
        (
            lambda: compress.codec(compress.codec("e4m3"), seed=1),
            ValueError,
            "has a seed and random_bits of its own",
        ),
        (lambda: compress.codec("e4m3").encode([1.0]), TypeError, "x must be a NumPy array"),
        (lambda: compress.codec("e4m3").encode(np.zeros(3)), TypeError, "got float64"),
        (lambda: compress.codec("e4m3").encode(X, stream=-1), ValueError, "stream"),
        (lambda: compress.codec("e4m3").encode(X, shift=601), ValueError, "shift must be at most"),
        (lambda: compress.codec("e4m3").encode(X, scale=-1.0), ValueError, "scale"),
        (lambda: compress.codec("e4m3").encode(X, state=3), TypeError, "states must be a"),
        (lambda: compress.codec("e4m3").encode(X, random=X), TypeError, "random must be integers"),
        (
            lambda: compress.codec("e4m3").encode(X, random=np.zeros(3, np.int64)),
            ValueError,
            "random must have x's shape",
        ),
        (
            lambda: compress.codec("e4m3", random_bits=3).encode(X, random=np.full(X.shape, 8)),
            ValueError,
            "random must be 0",
        ),
        (lambda: compress.codec("e2m1").encode(np.float32([np.nan])), ValueError, "NaN"),
        (lambda: compress.decode(b""), ValueError, "cut off"),
        (lambda: compress.decode(bytes(100)), ValueError, "no stream of a codec"),
        (lambda: compress.decode("abc"), TypeError, "data must be bytes"),
        (
            lambda: compress.decode(compress.codec("e4m3").encode(X).data, (3, 4)),
            ValueError,
            "the stream has 4773 values",
        ),
        (
            lambda: compress.codec("e4m3").decode(compress.codec("e5m2").encode(X).data),
            ValueError,
            "the stream was made by 'e5m2', not by 'e4m3'",
        ),
        (lambda: compress.States().reset("a"), TypeError, "number must be an int"),
        (lambda: compress.States().load_state_dict({}), ValueError, "no state of codecs"),
        (lambda: compress.States().load_state_dict({"layers": [3]}), ValueError, "no state"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_tensor_of_another_device_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="x must be on the CPU or CUDA, got meta"):
        compress.codec("e4m3").encode(torch.zeros(3, device="meta"))


def test_damage_is_an_error():
    data = compress.codec("mxfp8").encode(X[:2]).data
    for i in range(len(data)):
        with pytest.raises(ValueError, match=r"stream"):
            compress.decode(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with pytest.raises(ValueError, match=r"stream"):
            compress.decode(data[:i])


# ---- layouts of layers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "layout"),
    [
        ("int8_rows", (5,), RowLayout(None, 5)),
        ("int8_rows", (), RowLayout(None, 1)),
        ("int8_rows", (4, 5), RowLayout(None, 5)),
        ("int8_rows", (4, 5, 3, 3), RowLayout(None, 45)),
        ("int8_rows", (0, 5), RowLayout(None, 1)),
        ("one_bit", (5,), RowLayout(None, 5)),
        ("one_bit", (4, 5), RowLayout(0, 4)),
        ("one_bit axis=1", (4, 5), RowLayout(None, 5)),
        ("one_bit axis=-2", (4, 5), RowLayout(0, 4)),
        ("one_bit", (4, 5, 3, 2), RowLayout(None, 2)),
        ("one_bit axis=0", (4, 5, 3, 2), RowLayout(0, 4)),
        ("one_bit axis=1", (5,), RowLayout(None, 5)),
        ("one_bit bucket=64 axis=0", (4, 5), RowLayout(0, 4)),
        ("qsgd axis=0", (4, 5), RowLayout(0, 4)),
        ("qsgd axis=-1", (4, 5), RowLayout(None, 5)),
        ("feedback qsgd axis=1", (4, 5, 3), RowLayout(1, 5)),
    ],
)
def test_rows_and_columns(name, shape, layout, make):
    found = compress.codec(name).layout(shape)
    assert found == layout
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    moved = found.move(make(x))
    assert np.array_equal(np.asarray(found.back(moved)), x)
    assert np.array_equal(found.restored(np.ascontiguousarray(moved).reshape(-1), shape), x)


def test_an_axis_that_is_not_there():
    with pytest.raises(ValueError, match=r"axis must be -2…1 for a layer of shape \(4, 5\), got 2"):
        compress.codec("one_bit axis=2").layout((4, 5))
    with pytest.raises(ValueError, match=r"got -3, in 'qsgd bits=4 bucket=512 axis=-3'"):
        compress.codec("qsgd axis=-3").layout((4, 5))


def test_a_codec_without_rows_takes_layers_as_they_are():
    for name in ("e4m3", "qsgd", "one_bit bucket=64"):
        assert compress.codec(name).layout((4, 5)) == RowLayout()


# ---- states -------------------------------------------------------------------------------------


def kept(rank=0, number=0, text="feedback", values=(1.0, -2.0)):
    return {
        "rank": rank,
        "number": number,
        "stage": "contribution",
        "codec": text,
        "size": len(values),
        "values": np.array(values, "<f4").tobytes(),
    }


def test_states_are_saved_and_reset():
    layers = [kept(), kept(0, 7), kept(3, 7, values=(0.5,)), kept(1) | {"stage": "result"}]
    states = compress.States()
    states.load_state_dict({"layers": layers})
    assert states.state_dict()["layers"] == [layers[0], layers[1], layers[3], layers[2]]
    for other in (copy.deepcopy(states), pickle.loads(pickle.dumps(states))):
        assert other.state_dict() == states.state_dict()
    states.reset(7)
    assert states.state_dict()["layers"] == [layers[0], layers[3]]
    states.reset()
    assert states.state_dict() == {"layers": []}
    states.load_state_dict({"layers": layers[:1]})
    with pytest.raises(ValueError, match="no such stage"):
        states.load_state_dict({"layers": [kept() | {"stage": "else"}]})
    assert states.state_dict()["layers"] == layers[:1]


def test_states_serve_one_call_at_a_time():
    states = compress.States()
    with states.used(), pytest.raises(RuntimeError, match="in use by another call"):
        states.reset()

    def resets():
        states.reset()
        return [np.ones(3, np.float32)]

    with pytest.raises(RuntimeError, match="in use by another call"):
        cpd.simulate_all_reduce([resets] * 2, cpd.ReduceSpec(wire="int4"), states=states)
    states.reset()


# ---- use ----------------------------------------------------------------------------------------


def test_threads_encode_side_by_side():
    codec = compress.codec("mxfp8")
    wanted = codec.encode(X).data
    found = []

    def run():
        found.extend(codec.encode(X).data for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [wanted] * 80


def test_ten_thousand_calls_keep_no_memory():
    import resource

    codec, states, x = compress.codec("mxfp8"), compress.States(), X.reshape(-1)[:1000]

    def run(count):
        for _ in range(count):
            compress.decode(codec.encode(x, state=states).data)
            pickle.loads(pickle.dumps(codec))
            states.state_dict()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = run(1000)
    assert run(10_000) - before < 4096  # KiB; the packets were 15 MB


# ---- whose states --------------------------------------------------------------------------------

FED_BACK = cpd.ReduceSpec(wire="feedback int4 bucket=64")


def kept_by_ranks(world):
    """The states of so many ranks after an all-reduce."""
    states = [compress.States() for _ in range(world)]
    with cpd.comm.local(world) as group:
        group.run(lambda comm: reduce_with(comm, states[comm.rank]))
    return states


def reduce_with(comm, states):
    """What the call says, where it is refused."""
    layer = np.linspace(-1, 1 + comm.rank, 64, dtype=np.float32)
    try:
        comm.all_reduce([layer], FED_BACK, states=states)
    except (ValueError, cpd.comm.Mismatch) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_states_of_another_rank_are_refused():
    """Rank 0's checkpoint for all; after reset() they are nobody's."""
    saved = kept_by_ranks(2)[0].state_dict()
    assert (saved["world"], saved["rank"]) == (2, 0)
    states = [compress.States() for _ in range(2)]
    for one in states:
        one.load_state_dict(saved)
    with cpd.comm.local(2) as group:
        first, second = group.run(lambda comm: reduce_with(comm, states[comm.rank]))
        assert second.startswith(
            "ValueError: these states are those of rank 0 of 2 ranks, and were"
        )
        assert "given to rank 1 of 2 ranks" in second
        assert "given to rank 1 of 2 ranks" in first  # whose call is refused with it
        states[1].reset()
        assert group.run(lambda comm: reduce_with(comm, states[comm.rank])) == ["", ""]


def test_states_of_another_number_of_ranks_are_refused():
    states = kept_by_ranks(3)
    with cpd.comm.local(2) as group:
        said = group.run(lambda comm: reduce_with(comm, states[comm.rank]))
    assert all("those of rank" in text and "of 3 ranks" in text for text in said)
    virtual = compress.States()
    ranks = [[np.linspace(-1, 1, 64, dtype=np.float32)]] * 3
    cpd.simulate_all_reduce(ranks, FED_BACK, states=virtual)
    with pytest.raises(ValueError, match=r"those of all 3 ranks, and were given to all 2 ranks"):
        cpd.simulate_all_reduce(ranks[:2], FED_BACK, states=virtual)
    with pytest.raises(ValueError, match="those of rank 0 of 3 ranks, and were given to all 3"):
        cpd.simulate_all_reduce(ranks, FED_BACK, states=states[0])


@pytest.mark.parametrize("owner", [(0, None), (2, 2), (2, -1), ("2", 0), (2, 1.0), (True, 0)])
def test_states_of_no_rank(owner):
    saved = kept_by_ranks(1)[0].state_dict() | dict(zip(("world", "rank"), owner, strict=True))
    with pytest.raises(ValueError, match=r"(world|rank) must be"):
        compress.States().load_state_dict(saved)


def test_states_of_older_checkpoints_are_nobodys():
    saved = kept_by_ranks(1)[0].state_dict()
    states = compress.States()
    states.load_state_dict({"layers": saved["layers"]})
    with cpd.comm.local(1) as group:
        assert group.run(lambda comm: reduce_with(comm, states)) == [""]


# ---- states of another number of ranks -----------------------------------------------------------

OWING = ("feedback int4 bucket=64", "one_bit", "one_bit bucket=8", "top_k 0.1 qsgd bits=4")
SIZES = ((13, 7), (200,), (1,))


def owing(world, wire, steps=3, **options):
    """The states of so many ranks, each one's and those of virtual ones, after some steps."""
    spec = cpd.ReduceSpec(wire=wire, **options)
    rng = np.random.default_rng(world)
    states, virtual = [compress.States() for _ in range(world)], compress.States()
    with cpd.comm.local(world) as group:
        for step in range(steps):
            at = dataclasses.replace(spec, step=step)
            ranks = [
                [rng.standard_normal(size).astype(np.float32) for size in SIZES]
                for _ in range(world)
            ]
            group.run(
                lambda comm, ranks=ranks, at=at: comm.all_reduce(
                    ranks[comm.rank], at, states=states[comm.rank]
                )
            )
            cpd.simulate_all_reduce(ranks, at, states=virtual)
    return states, virtual


def values_of(states):
    """(rank, layer, stage): numbers."""
    return {
        (one["rank"], one["number"], one["stage"]): [
            x for (x,) in struct.iter_unpack("<f", one["values"])
        ]
        for one in states.state_dict()["layers"]
    }


def owed_by(states, world, factor):
    """What merge must give, in plain Python."""
    kept = {key: values for one in states for key, values in values_of(one).items()}
    owed = {}
    for rank, number, stage in sorted(kept, key=lambda key: (key[2], key[0])):
        if stage == "contribution":
            values = kept[rank, number, stage]
            before = owed.get((rank % world, number, stage), [0.0] * len(values))
            owed[rank % world, number, stage] = [a + b for a, b in zip(before, values, strict=True)]
    for number in range(len(SIZES)):
        ranks = max(rank for rank, *_ in kept) + 1
        keys = [((rank + number) % ranks, number, "result") for rank in range(ranks)]
        results = [x for key in keys for x in kept.get(key, ())]
        if results:
            first = owed[0, number, "contribution"]
            owed[0, number, "contribution"] = [a + b for a, b in zip(first, results, strict=True)]
    return {
        key: [struct.unpack("<f", struct.pack("<f", x * factor))[0] for x in values]
        for key, values in owed.items()
    }


@pytest.mark.parametrize("wire", OWING)
@pytest.mark.parametrize(("old", "world"), [(3, 2), (4, 2), (5, 1), (2, 3)])
@pytest.mark.parametrize("average", [False, True])
def test_states_merge(wire, old, world, average):
    """Of ranks and of virtual ones: what an oracle says, and the new job goes on with it."""
    states, virtual = owing(old, wire)
    wanted = owed_by(states, world, world / old if average else 1.0)
    assert wanted == owed_by([virtual], world, world / old if average else 1.0)
    virtual.merge(world, average=average)
    assert values_of(virtual) == wanted
    new = []
    for rank in range(world):
        made, *others = (pickle.loads(pickle.dumps(one)) for one in states)
        made.merge(world, rank, others=others[::-1], average=average)
        assert values_of(made) == {key: x for key, x in wanted.items() if key[0] == rank}
        assert made.state_dict()["world"] == world
        new.append(made)
    spec, layers = cpd.ReduceSpec(wire=wire), [np.zeros(size, np.float32) for size in SIZES]
    sums = cpd.simulate_all_reduce([layers] * world, spec, states=virtual)
    with cpd.comm.local(world) as group:
        got = group.run(lambda comm: comm.all_reduce(layers, spec, states=new[comm.rank]))
    for rank in got:
        assert all(np.array_equal(a, b) for a, b in zip(rank, sums, strict=True))


def as_0_7_stored(states):
    """What version 0.7 wrote, whose rank r owned slice r: as order="ring" does, without begins."""
    state = states.state_dict()
    for layer in state["layers"]:
        del layer["begin"]
    made = compress.States()
    made.load_state_dict(state)
    return made


@pytest.mark.parametrize("wire", OWING)
@pytest.mark.parametrize("stored", ["now", "by 0.7"])
def test_states_of_owners_that_do_not_rotate_merge(wire, stored):
    """order="ring", and what version 0.7 stored of any order: slices are put at their places."""
    old, world = 3, 2
    states, virtual = owing(old, wire, order="ring")
    wanted = owed_by([virtual], world, 1.0)  # whose results are whole
    if stored == "by 0.7":
        states = [as_0_7_stored(one) for one in states]
    for rank in range(world):
        made, *others = (pickle.loads(pickle.dumps(one)) for one in states)
        made.merge(world, rank, others=others)
        assert values_of(made) == {key: x for key, x in wanted.items() if key[0] == rank}


def begins_of(states):
    return {
        (layer["number"], layer["stage"]): (layer["begin"], layer["size"])
        for layer in states.state_dict()["layers"]
    }


def test_states_say_where_slices_begin():
    """Of layers of 91, 200 and 1 values in three ranks' buckets of eight: rank r owns slice
    (r - number) mod 3."""
    states, virtual = owing(3, "one_bit bucket=8", 1)
    starts = {0: [0, 32, 64, 91], 1: [0, 72, 136, 200], 2: [0, 1, 1, 1]}  # by hand
    for rank, one in enumerate(states):
        for (number, stage), (begin, size) in begins_of(one).items():
            index = (rank - number) % 3
            whole = (0, starts[number][-1])
            first, end = starts[number][index : index + 2] if stage == "result" else whole
            assert (begin, size) == (first, end - first)
        assert sum(stage == "result" for _, stage in begins_of(one)) == (3 if rank == 2 else 2)
    assert {begin for begin, _ in begins_of(virtual).values()} == {0}


def test_states_of_another_slice_are_refused():
    """Sums of rotating owners cannot use what version 0.7, or order="ring", kept of results."""
    wire, world = "one_bit bucket=8", 2
    spec = cpd.ReduceSpec(wire=wire)

    def call(states, spec, number):
        with cpd.comm.local(world) as group:

            def on_rank(comm):
                try:
                    layer = np.ones(32, np.float32)
                    comm.all_reduce([layer], spec, states=states[comm.rank], numbers=[number])
                except ValueError as error:
                    return str(error)
                return ""

            return group.run(on_rank)

    ring = dataclasses.replace(spec, order="ring")
    for number, fits in ((0, True), (1, False), (2, True)):
        states = [compress.States() for _ in range(world)]
        assert call(states, ring, number) == ["", ""]
        stored = [as_0_7_stored(one) for one in states]
        assert call([as_0_7_stored(one) for one in states], ring, number) == ["", ""]
        for given, note in ((states, ""), (stored, " (saved by version 0.7, whose owners do not")):
            said = call(given, spec, number)
            if fits:
                assert said == ["", ""]
                continue
            for rank, text in enumerate(said):
                about = f"rank {rank} kept the errors of its 16 results from index {16 * rank} on"
                assert f"layer number 1: {about}{note}" in text
                assert f"and now owns those from {16 - 16 * rank} on; merge() or reset()" in text


def test_states_of_two_versions_are_not_merged():
    states, _ = owing(3, "one_bit", 1)
    before = values_of(states[0])
    with pytest.raises(ValueError, match=r"layer 0 cannot be merged: version 0\.7 stored"):
        states[0].merge(2, 0, others=[states[1], as_0_7_stored(states[2])])
    states, _ = owing(3, "one_bit bucket=8", 1)
    ring, _ = owing(3, "one_bit bucket=8", 1, order="ring")
    before = values_of(states[0])
    # Both own the slice from 72 on.
    with pytest.raises(ValueError, match=r"kept 192 of its 200 .* slices from \[72, 72, 136\] on"):
        states[0].merge(2, 0, others=[ring[1], states[2]])
    assert values_of(states[0]) == before


def test_states_in_use_are_not_read():
    states, _ = owing(2, "one_bit", 1)
    with states[1].used():
        for call in (states[1].state_dict, lambda: states[0].merge(1, others=states[1:])):
            with pytest.raises(RuntimeError, match="in use by another call"):
                call()
    states[0].merge(1, others=states[1:])


def test_states_that_cannot_be_merged():
    states, virtual = owing(3, "one_bit", 1)
    before = values_of(states[0])
    for others, said in (
        (states[1:2], "states of all 3 ranks, each once, got those of rank 0 of 3 ranks, rank 1"),
        ((states[1], states[1]), "each once"),
        (states[:2], "each once"),
        ((*states[1:], virtual), "each once"),
        ((states[1], compress.States()), "nobody"),
    ):
        with pytest.raises(ValueError, match=said):
            states[0].merge(2, 0, others=others)
    with pytest.raises(ValueError, match="nobody's states cannot be merged"):
        compress.States().merge(2)
    with pytest.raises(ValueError, match=r"rank must be None or 0…1, got 2"):
        states[0].merge(2, 2, others=states[1:])
    with pytest.raises(TypeError, match="others must be"):
        states[0].merge(2, 0, others=[3])
    with pytest.raises(TypeError, match="average must be a bool"):
        states[0].merge(2, 0, others=states[1:], average=1)
    states[2].reset(0)  # a slice of results that is gone
    with pytest.raises(ValueError, match=r"layer 0 cannot be merged: owners kept \d+ of its 91"):
        states[0].merge(2, 0, others=states[1:])
    assert values_of(states[0]) == before


def test_states_of_another_meaning_are_not_merged():
    states = compress.States()
    layer = {"rank": 0, "number": 4, "stage": "contribution", "codec": "uniform bits=8", "size": 1}
    values = np.float32([0.5]).tobytes()
    states.load_state_dict({"world": 2, "rank": None, "layers": [layer | {"values": values}]})
    with pytest.raises(ValueError, match="layer 4 cannot be merged: what 'uniform bits=8' keeps"):
        states.merge(1)
    other = layer | {"rank": 1, "codec": "one_bit"}
    kept = [one | {"values": values} for one in (layer | {"codec": "feedback int4"}, other)]
    states.load_state_dict({"world": 2, "rank": None, "layers": kept})
    with pytest.raises(ValueError, match="all ranks must keep it by one codec with one size"):
        states.merge(1)
