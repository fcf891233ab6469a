# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.Reduce`, made from a text or from keywords, and the seed and step of a call."""

from __future__ import annotations

import pickle
import random
from typing import Any

import numpy as np
import pytest

import cpd
from reduce_cases import gradients

STOCHASTIC = (
    "e4m3 rounding=stochastic random_bits=8 accumulator='e4m3 sequential rounding=stochastic'"
)
KEYS: dict[str, list[Any]] = {
    "accumulator": ["fp32", "e5m10 kahan", "e6m9 sequential rounding=up"],
    "order": ["ring"],
    "exchange": ["gather"],
    "group_size": [2, 16],
    "aps": [True, "paper"],
    "average": [True],
    "divide": ["before"],
    "overflow": ["saturate"],
    "result": ["bf16"],
}


def same(mine: Any, others: Any) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(mine, others, strict=True))


# ---- texts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["e4m3", "(4,3)", "e4m3fn:bias=11:nosub", "fp16"])
def test_a_text_says_what_keywords_say(head: str) -> None:
    rng = random.Random(1)
    for _ in range(60):
        keys = {name: rng.choice(values) for name, values in KEYS.items() if rng.random() < 0.4}
        words = [f"{name}='{value}'" for name, value in keys.items()]
        rng.shuffle(words)
        spec = cpd.Reduce(head, **keys)
        assert cpd.Reduce(" ".join([head, *words]).replace("'True'", "true")) == spec
        for again in (cpd.Reduce(str(spec)), cpd.Reduce(spec), pickle.loads(pickle.dumps(spec))):
            assert again == spec
            assert hash(again) == hash(spec)
            assert all(getattr(again, name) == getattr(spec, name) for name in KEYS)
        for name, value in keys.items():
            given = getattr(spec, name)
            assert given == (cpd.Format(value) if name == "result" else value) or (
                name == "accumulator" and given == cpd.Accumulator(value)
            )


@pytest.mark.parametrize(
    "codec", ["qsgd bits=2 bucket=128 norm=2", "top_k 0.01 e4m3", "mxfp8", "int8 block=64"]
)
def test_codecs_have_texts(codec: str) -> None:
    options = {"average": True, "accumulator": "fp32 kahan", "exchange": "gather"}
    spec = cpd.Reduce(codec, **options)
    text = f"{codec} average accumulator='fp32 kahan' exchange=gather"
    assert spec == cpd.Reduce(text) == cpd.Reduce(cpd.Codec(codec), **options)
    assert cpd.Reduce(spec.text) == spec
    assert spec.codec == cpd.Codec(codec)
    assert (spec.format is None) == codec.startswith(("qsgd", "top_k"))


def test_a_spec_without_groups_has_no_group_size() -> None:
    assert cpd.Reduce("e4m3").group_size is None
    assert cpd.Reduce("e4m3 group_size=1").group_size == 1


def test_a_codec_keeps_its_random_bits() -> None:
    codec = cpd.Codec("qsgd bits=4", random_bits=8)
    assert cpd.Reduce(codec).text == "qsgd bits=4 bucket=512 random_bits=8"
    assert cpd.Reduce(codec, random_bits=9).random_bits == 9


def test_quotes_are_not_part_of_a_codec() -> None:
    assert (
        cpd.Reduce("feedback 'qsgd bits=2' aps=false").text
        == cpd.Reduce("feedback qsgd bits=2").text
    )


def test_keywords_replace_keys_of_the_text() -> None:
    spec = cpd.Reduce("e4m3 aps order=ring group_size=4", order="tree", aps=False)
    assert spec.text == "e4m3 order=tree group_size=4"
    assert spec.replace(group_size=None, order=None) == cpd.Reduce("e4m3")
    assert spec.replace(codec="e5m2").result == cpd.Format("e5m2")
    assert cpd.Reduce(spec, loss_scale=2.0**-126).loss_scale == 2.0**-126
    assert (
        cpd.Reduce(cpd.Reduce("e4m3 loss_scale=1.1754943508222875e-38").text).loss_scale
        == 2.0**-126
    )


@pytest.mark.parametrize("given", ["text", 2**77, np.int64(2**50), np.float32(2.0**51)])
def test_loss_scales_are_floats(given: Any) -> None:
    """A loss scale is stored as a float, whether it comes from a text or a keyword. Equal specs
    share one object, so a spec made from an integer must also hold a float."""
    spec = (
        cpd.Reduce("e4m3 loss_scale=8") if given == "text" else cpd.Reduce("e4m3", loss_scale=given)
    )
    assert type(spec.loss_scale) is float
    assert type(pickle.loads(pickle.dumps(spec)).loss_scale) is float


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "e4m3 agregate=1",
            "unknown option 'agregate' of an all-reduce; there are accumulator, order",
        ),
        ("e4m3 acumulator=fp32", "did you mean 'accumulator'"),
        ("e4m3 kahan", "'kahan' is a scheme of a sum: write accumulator='e4m3 kahan'"),
        ("e4m3 32 apss", "did you mean 'aps'"),
        ("e4m3 nonsense", "unknown option 'nonsense' of an all-reduce; there are accumulator"),
        ("mxfp8 aps", "aps chooses a scale of each tensor; codec 'mxfp8' has scales of its own"),
        ("e4m3 apss", "unknown option 'apss' of an all-reduce; .*did you mean 'aps'"),
        ("e4m3 seed=3", r"an all-reduce has no seed: give it to the call, cpd.simulate_all_reduce"),
        ("qsgd bits=4 step=3", "an all-reduce has no step: give it to the call"),
        ("mxfp8 groupsize=2", "did you mean 'group_size'"),
        ("qsgd levles=signed", "unknown option 'levles' of qsgd; .*did you mean 'levels'"),
        (
            "e4m3 order=tree accumulator='e4m3 kahan'",
            "order tree merges sums two by two: its accumulator must be sequential, got kahan",
        ),
        ("topk 0.1", "unknown codec 'topk 0.1': expected one of qsgd"),
        ("e4m3 aps aps", "aps is given twice in 'e4m3 aps aps'"),
        ("e4m3 group_size=two", "group_size must be an integer, got 'two'"),
        ("e4m3 group_size", "group_size needs a value, as in group_size=…, in 'e4m3 group_size'"),
        ("e4m3 order=spiral", "order must be sequential, ring or tree, got 'spiral'"),
        ("e4m3 accumulator='fp32", "a quote is not closed in"),
        ("aps", "unknown (codec|format) ''"),
    ],
)
def test_a_wrong_text_is_told(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        cpd.Reduce(text)


def test_keywords_of_0_7_are_told() -> None:
    for keyword in ("wire", "format"):
        with pytest.raises(
            TypeError, match=rf"Reduce\(\) takes the first argument in place of {keyword}="
        ):
            cpd.Reduce(**{keyword: "e4m3"})
    with pytest.raises(TypeError, match=r"takes ranks= in place of per_rank="):
        cpd.simulate_all_reduce(per_rank=[[np.ones(1, np.float32)]], spec="e4m3")
    with pytest.raises(TypeError, match="takes the first argument in place of wire="):
        cpd.Reduce("e4m3").replace(wire="e5m2")


# ---- numbers of calls ----------------------------------------------------------------------------


def test_the_seed_and_the_step_of_a_call() -> None:
    """The seed and the step of a call determine the random bits of casts and sums (test_reduce.py
    tests the bits)."""
    ranks = gradients(5)
    wanted = cpd.simulate_all_reduce(ranks, STOCHASTIC, seed=3, step=9)
    assert same(cpd.simulate_all_reduce(ranks, STOCHASTIC, seed=np.int64(3), step=9), wanted)
    for numbers in ({"seed": 4, "step": 9}, {"seed": 3, "step": 8}, {}):
        assert not same(cpd.simulate_all_reduce(ranks, STOCHASTIC, **numbers), wanted)


def test_codecs_draw_from_the_seed_of_a_call() -> None:
    ranks = gradients(3)
    for codec in ("qsgd bits=4", "mxfp8 rounding=stochastic"):
        wanted = cpd.simulate_all_reduce(ranks, codec, seed=2, step=1)
        for numbers in ({"seed": 2}, {"seed": 3, "step": 1}):
            assert not same(cpd.simulate_all_reduce(ranks, codec, **numbers), wanted)


def test_a_communicator_counts_its_reductions() -> None:
    ranks = gradients(3)

    def calls(comm: cpd.comm.Communicator) -> list[Any]:
        mine = ranks[comm.rank]
        found = [comm.all_reduce(mine, STOCHASTIC) for _ in range(2)]
        with pytest.raises(ValueError, match="order must be"):
            comm.all_reduce(mine, "e4m3 order=x")  # raises, so does not count
        found.append(comm.all_reduce(mine, STOCHASTIC, step=9))
        comm.reduce(mine, "e4m3")
        assert comm.step == 4
        comm.step = 6
        found.append(comm.all_reduce(mine, STOCHASTIC))
        part = comm.subgroup(range(comm.size))
        assert (part.seed, part.step) == (3, 0)
        return found

    with cpd.comm.local(3, seed=3) as group:
        found = group.run(calls)
    for mine in found:
        for sums, step in zip(mine, (0, 1, 9, 6), strict=True):
            assert same(sums, cpd.simulate_all_reduce(ranks, STOCHASTIC, seed=3, step=step))


@pytest.mark.parametrize("name", ["seed", "step"])
def test_ranks_with_other_numbers_are_told(name: str) -> None:
    def call(comm: cpd.comm.Communicator) -> str:
        setattr(comm, name, 5 if comm.rank else 4)
        with pytest.raises(cpd.comm.Mismatch) as caught:
            comm.all_reduce([np.ones(4, np.float32)], "e4m3")
        return str(caught.value)

    with cpd.comm.local(2) as group:
        assert all(f"{name} is 4 on rank 0 and 5 on rank 1" in text for text in group.run(call))


def test_a_schedule_is_one_step_of_a_communicator() -> None:
    ranks, names = [rank[:2] for rank in gradients(2)], ["a", "b"]
    schedule = cpd.Schedule(STOCHASTIC, exempt=["b"], first_steps=1)

    def calls(comm: cpd.comm.Communicator) -> Any:
        found = [comm.all_reduce(ranks[comm.rank], schedule, names=names) for _ in range(3)]
        assert comm.step == 3
        return found

    with cpd.comm.local(2, seed=8) as group:
        found = group.run(calls)[1]
    for step, sums in enumerate(found):
        wanted = cpd.simulate_all_reduce(ranks, schedule, names=names, seed=8, step=step)
        assert same(sums, wanted)
    with pytest.raises(ValueError, match="a Schedule with exempt tensors needs names="):
        cpd.simulate_all_reduce(ranks, schedule)
