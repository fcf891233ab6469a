# SPDX-License-Identifier: Apache-2.0
"""Tests codecs without an all-reduce: their texts, streams and stored state, and codecs that encode
the values of another format."""

from __future__ import annotations

import copy
import dataclasses
import pickle
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
    packet = cpd.Codec(name).encode(make(X))
    assert type(packet.values) is type(make(X))
    wanted = np.asarray(cpd.cast(X.reshape(-1), name)).reshape(X.shape)
    assert np.array_equal(np.asarray(packet.values), wanted)
    assert np.array_equal(compress.Packet.from_bytes(packet.data, X.shape).values, wanted)
    assert packet.size == X.size
    assert len(packet.data) > packet.bytes == round(packet.bits_a_value * X.size / 8)


def test_packets_are_copied_decoded_or_not(make):
    for decoded in (False, True):
        packet = cpd.Codec("int8_rows").encode(make(X.T))
        if decoded:
            assert packet.values is packet.values
        for twin in (copy.deepcopy(packet), pickle.loads(pickle.dumps(packet))):
            assert type(twin.values) is type(make(X))
            assert np.array_equal(np.asarray(twin.values), np.asarray(packet.values))
            assert (twin.data, twin.bytes, twin.shape) == (packet.data, packet.bytes, X.T.shape)


@pytest.mark.parametrize("outer", ["feedback", "quantized", "blockwise", "top_k 1 feedback=off"])
def test_a_scaled_format_saturates_within_a_codec(outer):
    inner = cpd.Codec("mxfp8").encode(X).values
    values = cpd.Codec(f"{outer} mxfp8").encode(X).values
    assert np.array_equal(values, inner)


def test_any_layout_and_type(make):
    e4m3 = cpd.Codec("e4m3")
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
    e4m3 = cpd.Codec("e4m3")
    assert np.array_equal(e4m3.encode(x).values, [0, 0])
    shifted = e4m3.encode(x, shift=20)
    assert np.array_equal(shifted.values, x)
    assert np.array_equal(compress.Packet.from_bytes(shifted.data).values, x)


@pytest.mark.parametrize("name", FORMATS)
def test_pieces_are_those_of_the_whole(name):
    """A chunk that is decoded alone has the same values as within the whole layer."""
    held = cpd.Codec(name)._held
    flat = X.reshape(-1)
    wanted = cpd.Codec(name).encode(flat).values
    for begin, n in ((0, flat.size), (0, 1), (4096, 600), (64, 32), (flat.size, 0)):
        before = begin % held.bucket
        data = held.encode(flat, begin=begin, n=n)
        assert len(data) == held.most_bytes(n, before)
        assert np.array_equal(held.decode(data, n, before=before), wanted[begin : begin + n])
    with pytest.raises(ValueError, match="a piece must lie in the tensor's"):
        held.encode(flat, begin=1, n=flat.size)


# ---- codecs are values --------------------------------------------------------------------------


def test_a_codec_is_a_value():
    codec = cpd.Codec("mxfp8", random_bits=7)
    copies = [copy.copy(codec), copy.deepcopy(codec), pickle.loads(pickle.dumps(codec))]
    for other in [*copies, cpd.Codec(codec)]:
        assert other == codec
        assert hash(other) == hash(codec)
    assert codec.replace(random_bits=8) != codec
    assert str(codec) == codec.text == "mxfp8"
    assert eval(repr(codec), {"cpd": cpd}) == codec
    with pytest.raises(dataclasses.FrozenInstanceError):
        codec.random_bits = 3


def test_torch_loads_codecs_and_states(tmp_path):
    torch = pytest.importorskip("torch")
    kept = {"codec": cpd.Codec("mxfp8"), "states": compress.States()}
    torch.save(kept, tmp_path / "kept.pt")
    loaded = torch.load(tmp_path / "kept.pt", weights_only=True)
    assert loaded["codec"] == kept["codec"]
    assert loaded["states"].state_dict() == {"layers": []}


def test_the_table():
    found = cpd.Codec.named()
    assert list(found) == [name for name, *_ in _core.compressors()]
    for name, one in found.items():
        assert one["summary"]
        assert one["source"]
        assert one["options"]
        assert name in cpd.Codec.__doc__ or name == "sparse"


@pytest.mark.parametrize("text", ["qsgd bits=2", "terngrad", "int4 stochastic"])
def test_the_seed_of_a_call(text):
    plain = cpd.Codec(text, random_bits=3)
    wanted = plain.encode(X, seed=7, stream=3).values
    np.testing.assert_array_equal(plain.encode(X, seed=np.int64(7), stream=3).values, wanted)
    assert (plain.encode(X, seed=8, stream=3).values != wanted).any()
    with pytest.raises(
        TypeError, match=r"Codec\(\) takes no seed=: give it to the call, Codec.enc"
    ):
        cpd.Codec(text, seed=7)
    with pytest.raises(ValueError, match="seed"):
        plain.encode(X, seed=-1)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("name", "name is gone: use text"),
        ("by_rows", "by_rows is gone: it was internal, and nothing takes its place"),
        ("nothing", "no attribute 'nothing'"),
    ],
)
def test_members_that_are_gone(name, told):
    with pytest.raises(AttributeError, match=told):
        getattr(cpd.Codec("e4m3"), name)


def test_a_codec_of_a_codec():
    own = cpd.Codec("qsgd bits=2 bucket=64", random_bits=7)
    assert own.replace(bits=4) == cpd.Codec("qsgd bits=4 bucket=64", random_bits=7)
    assert cpd.Codec(own, random_bits=8) == cpd.Codec("qsgd bucket=64 bits=2", random_bits=8)


# ---- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: cpd.Codec("gzip"), ValueError, "unknown codec 'gzip'"),
        (lambda: cpd.Codec(""), ValueError, "unknown codec"),
        (lambda: cpd.Codec(3), TypeError, "a codec must be a cpd.Codec or its text"),
        (lambda: cpd.Codec("e4m3", random_bits=25), ValueError, "random_bits"),
        (lambda: cpd.Codec("e4m3").encode(X, seed=-1), ValueError, "seed"),
        (lambda: cpd.Codec("e4m3").encode(X, seed=1.0), TypeError, "seed"),
        (lambda: cpd.Codec("e4m3").encode([1.0]), TypeError, "x must be a NumPy array"),
        (lambda: cpd.Codec("e4m3").encode(np.zeros(3)), TypeError, "got float64"),
        (lambda: cpd.Codec("e4m3").encode(X, stream=-1), ValueError, "stream"),
        (lambda: cpd.Codec("e4m3").encode(X, shift=601), ValueError, "shift must be at most"),
        (lambda: cpd.Codec("e4m3").encode(X, scale=-1.0), ValueError, "scale"),
        (lambda: cpd.Codec("e4m3").encode(X, states=3), TypeError, "states must be a"),
        (lambda: cpd.Codec("e4m3").encode(X, random=X), TypeError, "random must be integers"),
        (
            lambda: cpd.Codec("e4m3").encode(X, random=np.zeros(3, np.int64)),
            ValueError,
            "random must have x's shape",
        ),
        (
            lambda: cpd.Codec("e4m3", random_bits=3).encode(X, random=np.full(X.shape, 8)),
            ValueError,
            "random must be 0",
        ),
        (lambda: cpd.Codec("e2m1").encode(np.float32([np.nan])), ValueError, "NaN"),
        (lambda: compress.Packet.from_bytes(b""), ValueError, "cut off"),
        (lambda: compress.Packet.from_bytes(bytes(100)), ValueError, "no stream of a codec"),
        (lambda: compress.Packet.from_bytes("abc"), TypeError, "data must be bytes"),
        (
            lambda: compress.Packet.from_bytes(cpd.Codec("e4m3").encode(X).data, (3, 4)),
            ValueError,
            "the stream has 4773 values",
        ),
        (
            lambda: cpd.Codec("e4m3").decode(cpd.Codec("e5m2").encode(X).data),
            ValueError,
            "the stream was made by 'e5m2', not by 'e4m3'",
        ),
        (lambda: compress.States().reset("a"), TypeError, "number must be an int"),
        (lambda: compress.States().load_state_dict({}), ValueError, "not a state_dict of"),
        (
            lambda: compress.States().load_state_dict({"layers": [3]}),
            ValueError,
            "not a state_dict of",
        ),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_a_tensor_of_another_device_is_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match="x must be on the CPU or CUDA, got meta"):
        cpd.Codec("e4m3").encode(torch.zeros(3, device="meta"))


def test_damage_is_an_error():
    data = cpd.Codec("mxfp8").encode(X[:2]).data
    for i in range(len(data)):
        with pytest.raises(ValueError, match=r"stream"):
            compress.Packet.from_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with pytest.raises(ValueError, match=r"stream"):
            compress.Packet.from_bytes(data[:i])


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
    found = cpd.Codec(name)._layout(shape)
    assert found == layout
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    moved = found.move(make(x))
    assert np.array_equal(np.asarray(found.back(moved)), x)
    assert np.array_equal(found.restored(np.ascontiguousarray(moved).reshape(-1), shape), x)


def test_an_axis_that_is_not_there():
    with pytest.raises(
        ValueError, match=r"axis must be -2…1 for a tensor of shape \(4, 5\), got 2"
    ):
        cpd.Codec("one_bit axis=2")._layout((4, 5))
    with pytest.raises(ValueError, match=r"got -3, in 'qsgd bits=4 bucket=512 axis=-3'"):
        cpd.Codec("qsgd axis=-3")._layout((4, 5))


def test_a_codec_without_rows_takes_layers_as_they_are():
    for name in ("e4m3", "qsgd", "one_bit bucket=64"):
        assert cpd.Codec(name)._layout((4, 5)) == RowLayout()


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
    with states._used(), pytest.raises(RuntimeError, match="in use by another call"):
        states.reset()

    def resets():
        states.reset()
        return [np.ones(3, np.float32)]

    with pytest.raises(RuntimeError, match="in use by another call"):
        cpd.simulate_all_reduce([resets] * 2, cpd.Reduce("int4"), states=states)
    states.reset()


# ---- use ----------------------------------------------------------------------------------------


def test_threads_encode_side_by_side():
    codec = cpd.Codec("mxfp8")
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

    codec, states, x = cpd.Codec("mxfp8"), compress.States(), X.reshape(-1)[:1000]

    def run(count):
        for _ in range(count):
            compress.Packet.from_bytes(codec.encode(x, states=states).data)
            pickle.loads(pickle.dumps(codec))
            states.state_dict()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = run(1000)
    assert run(10_000) - before < 4096  # KiB; the packets were 15 MB


# ---- whose states --------------------------------------------------------------------------------

FED_BACK = cpd.Reduce("feedback int4 bucket=64")


def kept_by_ranks(world):
    """Returns the codec states (errors to feed back) of `world` ranks after an all-reduce."""
    states = [compress.States() for _ in range(world)]
    with cpd.comm.local(world) as group:
        group.run(lambda comm: reduce_with(comm, states[comm.rank]))
    return states


def reduce_with(comm, states):
    """Returns the text of the error if the call raises one."""
    layer = np.linspace(-1, 1 + comm.rank, 64, dtype=np.float32)
    try:
        comm.all_reduce([layer], FED_BACK, states=states)
    except (ValueError, cpd.comm.Mismatch) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_states_of_another_rank_are_refused():
    """States of another rank are refused: here all ranks load rank 0's checkpoint. After reset(),
    any rank may use the states."""
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
        assert "given to rank 1 of 2 ranks" in first  # rank 0 is refused because rank 1 is
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
