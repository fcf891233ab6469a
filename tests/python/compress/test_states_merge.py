# SPDX-License-Identifier: Apache-2.0
"""Tests the states of codecs after an all-reduce: the slice of the result that a rank's state
covers, and merging states for another number of ranks."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest

import cpd
from cpd import compress

OWING = ("feedback int4 bucket=64", "one_bit", "one_bit bucket=8", "top_k 0.1 qsgd bits=4")
SIZES = ((13, 7), (200,), (1,))
MIXED = (
    r"tensor 0 cannot be merged: version 0\.7 stored the states of some ranks, a later one those "
    r"of others; reset\(\) it on all ranks"
)


def owing(world, wire, steps=3, **options):
    """Takes some steps with error feedback. Returns the codec states of `world` real ranks, and of
    virtual ranks after the same steps. A codec state holds the errors that the codec feeds back."""
    spec = cpd.Reduce(wire, **options)
    rng = np.random.default_rng(world)
    states, virtual = [compress.States() for _ in range(world)], compress.States()
    with cpd.comm.local(world) as group:
        for step in range(steps):
            ranks = [
                [rng.standard_normal(size).astype(np.float32) for size in SIZES]
                for _ in range(world)
            ]
            group.run(
                lambda comm, ranks=ranks, step=step: comm.all_reduce(
                    ranks[comm.rank], spec, states=states[comm.rank], step=step
                )
            )
            cpd.simulate_all_reduce(ranks, spec, step=step, states=virtual)
    return states, virtual


def values_of(states):
    """Returns the stored errors, by rank, layer number and stage of the all-reduce."""
    return {
        (one["rank"], one["number"], one["stage"]): [
            x for (x,) in struct.iter_unpack("<f", one["values"])
        ]
        for one in states.state_dict()["layers"]
    }


def owed_by(states, world, factor):
    """Computes in plain Python the states that States.merge must give for `world` ranks."""
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
    """Merged states of real and of virtual ranks equal the oracle's states. A job with the new
    number of ranks can use them."""
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
    spec, layers = cpd.Reduce(wire), [np.zeros(size, np.float32) for size in SIZES]
    sums = cpd.simulate_all_reduce([layers] * world, spec, states=virtual)
    with cpd.comm.local(world) as group:
        got = group.run(lambda comm: comm.all_reduce(layers, spec, states=new[comm.rank], step=0))
    for rank in got:
        assert all(np.array_equal(a, b) for a, b in zip(rank, sums, strict=True))


def as_0_7_stored(states):
    """Returns codec states as version 0.7 stored them: without the index at which a slice begins.
    In version 0.7, rank r owned slice r, as with order="ring" now."""
    state = states.state_dict()
    for layer in state["layers"]:
        del layer["begin"]
    made = compress.States()
    made.load_state_dict(state)
    return made


@pytest.mark.parametrize("wire", OWING)
@pytest.mark.parametrize("stored", ["now", "by 0.7"])
def test_states_of_owners_that_do_not_rotate_merge(wire, stored):
    """Codec states for another number of ranks can be made from states with order="ring", and from
    states of version 0.7 with any order. Each slice is copied to its index in the layer."""
    old, world = 3, 2
    states, virtual = owing(old, wire, order="ring")
    wanted = owed_by([virtual], world, 1.0)  # virtual ranks hold whole results
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
    """A state stores where its slice begins. In layers of 91, 200 and 1 values with buckets of
    eight, rank r owns slice (r - number) mod 3 of layer `number`."""
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
    """If the slice that a rank owns changes from layer to layer, an all-reduce refuses a rank's
    state for another slice. Version 0.7 and order="ring" may have stored such a state."""
    wire, world = "one_bit bucket=8", 2
    spec = cpd.Reduce(wire)

    def call(states, spec, number):
        with cpd.comm.local(world) as group:

            def on_rank(comm):
                try:
                    layer = np.ones(32, np.float32)
                    comm.all_reduce(
                        [layer], spec, states=states[comm.rank], numbers=[number], step=0
                    )
                except ValueError as error:
                    return str(error)
                return ""

            return group.run(on_rank)

    ring = spec.replace(order="ring")
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
                assert f"tensor number 1: {about}{note}" in text
                assert f"and now owns those from {16 - 16 * rank} on; merge() or reset()" in text


def test_states_of_two_versions_are_not_merged():
    states, _ = owing(3, "one_bit", 1)
    before = values_of(states[0])
    with pytest.raises(ValueError, match=MIXED):
        states[0].merge(2, 0, others=[states[1], as_0_7_stored(states[2])])
    states, _ = owing(3, "one_bit bucket=8", 1)
    ring, _ = owing(3, "one_bit bucket=8", 1, order="ring")
    before = values_of(states[0])
    # The states of ranks 0 and 1 belong to the same slice, which begins at index 72.
    with pytest.raises(ValueError, match=r"kept 192 of its 200 .* slices from \[72, 72, 136\] on"):
        states[0].merge(2, 0, others=[ring[1], states[2]])
    assert values_of(states[0]) == before


def test_states_in_use_are_not_read():
    states, _ = owing(2, "one_bit", 1)
    with states[1]._used():
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
    with pytest.raises(ValueError, match="the states are empty, so they cannot be merged"):
        compress.States().merge(2)
    with pytest.raises(ValueError, match=r"rank must be None or 0…1, got 2"):
        states[0].merge(2, 2, others=states[1:])
    with pytest.raises(TypeError, match="others must be"):
        states[0].merge(2, 0, others=[3])
    with pytest.raises(TypeError, match="average must be a bool"):
        states[0].merge(2, 0, others=states[1:], average=1)
    states[2].reset(0)  # removes a slice of the results
    with pytest.raises(ValueError, match=r"tensor 0 cannot be merged: owners kept \d+ of its 91"):
        states[0].merge(2, 0, others=states[1:])
    assert values_of(states[0]) == before


def test_states_of_another_meaning_are_not_merged():
    states = compress.States()
    layer = {"rank": 0, "number": 4, "stage": "contribution", "codec": "uniform bits=8", "size": 1}
    values = np.float32([0.5]).tobytes()
    states.load_state_dict({"world": 2, "rank": None, "layers": [layer | {"values": values}]})
    with pytest.raises(ValueError, match="tensor 4 cannot be merged: what 'uniform bits=8' stores"):
        states.merge(1)
    other = layer | {"rank": 1, "codec": "one_bit"}
    kept = [one | {"values": values} for one in (layer | {"codec": "feedback int4"}, other)]
    states.load_state_dict({"world": 2, "rank": None, "layers": kept})
    with pytest.raises(ValueError, match="all ranks must keep it by one codec with one size"):
        states.merge(1)
