# SPDX-License-Identifier: Apache-2.0
"""Tests schedules: the spec that reduces each layer at each step, and the random bits of the
reduction."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import cpd

STOCHASTIC = cpd.Reduce(
    "e4m3",
    accumulator=cpd.Accumulator("e4m3", rounding="stochastic"),
    aps=True,
    rounding="stochastic",
)
NAMES = ["first.weight", "first.bias", "output.weight", "output.bias"]
SIZES = [(7, 3), (7,), (5, 7), (5,)]


def contributions(world: int) -> list[list[np.ndarray]]:
    random = np.random.RandomState(world)
    return [
        [random.standard_normal(size).astype(np.float32) for size in SIZES] for _ in range(world)
    ]


def equal(mine, others) -> bool:
    return len(mine) == len(others) and all(map(np.array_equal, mine, others))


def test_every_layer_has_its_spec_at_every_step():
    late = cpd.Reduce("bf16")
    schedule = cpd.Schedule(STOCHASTIC, exempt=["*.bias"], exempt_spec=late, first_steps=2)
    fp32 = cpd.Reduce("fp32")
    assert schedule.spec_of("first.weight", 1) == fp32
    assert schedule.spec_of("first.weight", 2) == STOCHASTIC
    assert schedule.spec_of("first.bias", 0) == late
    assert schedule._parts(NAMES, 0) == [(fp32, [0, 2]), (late, [1, 3])]


def test_equal_specs_are_one_call():
    schedule = cpd.Schedule(STOCHASTIC, exempt=["*.bias"], first_steps=1)
    assert schedule._parts(NAMES, 0) == [(cpd.Reduce("fp32"), [0, 1, 2, 3])]
    assert [numbers for _, numbers in schedule._parts(NAMES, 1)] == [[0, 2], [1, 3]]
    assert cpd.Schedule(STOCHASTIC)._parts([], 0) == []


def test_fp32_keeps_order_groups_exchange_and_average():
    spec = STOCHASTIC.replace(order="ring", exchange="hierarchical", group_size=2, average=True)
    exempt = cpd.Schedule(spec).exempt_spec
    kept = ("order", "exchange", "group_size", "average")
    assert all(getattr(exempt, name) == getattr(spec, name) for name in kept)
    assert exempt == cpd.Reduce("fp32", **{name: getattr(spec, name) for name in kept})


@pytest.mark.parametrize("exempt", [[], ["output.*"], ["first.weight", "*.bias"], ["*"]])
def test_a_layers_bits_do_not_depend_on_which_others_are_exempt(exempt):
    per_rank = contributions(5)
    schedule = cpd.Schedule(STOCHASTIC, exempt=exempt)
    sums, reports = cpd.simulate_all_reduce(
        per_rank, schedule, names=NAMES, seed=5, step=3, report=True
    )
    by_spec = {
        False: cpd.simulate_all_reduce(per_rank, STOCHASTIC, seed=5, step=3, report=True),
        True: cpd.simulate_all_reduce(per_rank, cpd.Reduce("fp32"), report=True),
    }
    for number, name in enumerate(NAMES):
        layers, told = by_spec[schedule._is_exempt(name)]
        assert np.array_equal(sums[number], layers[number])
        assert reports[number] == told[number]


def test_first_steps_are_in_fp32():
    per_rank = contributions(3)
    schedule = cpd.Schedule(STOCHASTIC, first_steps=2)
    fp32 = cpd.simulate_all_reduce(per_rank, cpd.Reduce("fp32"))
    for step in range(4):
        later = cpd.simulate_all_reduce(per_rank, STOCHASTIC, step=step)
        sums = cpd.simulate_all_reduce(per_rank, schedule, names=NAMES, step=step)
        assert equal(sums, fp32 if step < 2 else later)


def test_ranks_may_be_functions():
    per_rank = contributions(3)
    schedule = cpd.Schedule(STOCHASTIC, exempt=["*.bias"])
    functions = [lambda rank=rank: rank for rank in per_rank]
    assert equal(
        cpd.simulate_all_reduce(functions, schedule, names=NAMES, step=0),
        cpd.simulate_all_reduce(per_rank, schedule, names=NAMES, step=0),
    )


@pytest.mark.parametrize("in_place", [False, True])
def test_a_communicator_gives_the_same(in_place):
    world = 3
    per_rank = contributions(world)
    schedule = cpd.Schedule(STOCHASTIC, exempt=["*.bias"])
    sums, told = cpd.simulate_all_reduce(per_rank, schedule, names=NAMES, step=7, report=True)

    def work(comm):
        layers = [layer.copy() for layer in per_rank[comm.rank]]
        out = layers if in_place else None
        mine, report = comm.all_reduce(layers, schedule, names=NAMES, step=7, out=out, report=True)
        if in_place:
            assert all(a is b for a, b in zip(mine, layers, strict=True))
        else:
            assert equal(layers, per_rank[comm.rank])
        parts = [
            comm.all_reduce(layers[i : i + 1], cpd.Reduce("fp32"), report=True)[1].traffic
            for i in range(2)
        ]
        assert report.traffic.messages > max(part.messages for part in parts)
        return mine, report.tensors

    for mine, report in cpd.comm.local(world).run(work):
        assert equal(mine, sums)
        assert report == told


def test_out_must_be_as_many_as_the_names():
    """A call raises an error unless `out` has one tensor for each name in `names`. A schedule
    reduces some layers by one spec, some by another; `out` with a tensor for each layer of one
    spec alone is refused, too."""
    layers = contributions(1)[0]
    schedule = cpd.Schedule(STOCHASTIC, exempt=["*.bias"])
    blank = [np.full_like(layer, 7) for layer in layers]

    def wrong(comm):
        for out in (blank[:3], [], [*blank, np.zeros(3, np.float32)]):
            told = f"there are 4 names but {len(out)} tensors in out"
            with pytest.raises(ValueError, match=told):
                comm.all_reduce(layers, schedule, names=NAMES, step=0, out=out)
        with pytest.raises(TypeError, match="out must be a list of tensors, got ndarray"):
            comm.all_reduce(layers, schedule, names=NAMES, step=0, out=blank[0])
        with pytest.raises(ValueError, match="4 names but 3 tensors"):
            comm.all_reduce(layers[:3], schedule, names=NAMES, step=0)
        assert all((layer == 7).all() for layer in blank)
        sums = comm.all_reduce(layers, schedule, names=NAMES, step=0, out=iter(blank))
        assert all(a is b for a, b in zip(sums, blank, strict=True))

    cpd.comm.local(1).run(wrong)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [
        (cpd.Schedule(STOCHASTIC.replace(group_size=3)), "^spec: group_size must be 1…2 "),
        (
            cpd.Schedule(
                STOCHASTIC, exempt=["*.bias"], exempt_spec=cpd.Reduce("fp32", group_size=16)
            ),
            r"^exempt_spec: group_size must be 1…2 \(the ranks\), got 16$",
        ),
        (
            cpd.Schedule(STOCHASTIC, first_steps=9, first_spec=cpd.Reduce("e5m2", group_size=4)),
            "^first_spec: group_size",
        ),
    ],
)
def test_groups_are_at_most_the_ranks(schedule, told):
    """group_size must not exceed the number of ranks. Each call checks all specs of a schedule,
    even those that the present step does not use."""

    def work(comm):
        with pytest.raises(ValueError, match=told):
            comm.all_reduce(contributions(2)[comm.rank], schedule, names=NAMES, step=20)

    cpd.comm.local(2).run(work)
    with pytest.raises(ValueError, match=told):
        schedule._check_world(2)
    schedule._check_world(16)


def test_values_are_compared_hashed_and_pickled():
    schedule = cpd.Schedule(STOCHASTIC, exempt=["*.bias"], first_steps=3)
    again = pickle.loads(pickle.dumps(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert schedule != cpd.Schedule(STOCHASTIC, exempt=["*.bias"])
    with pytest.raises(AttributeError):
        schedule.first_steps = 4


@pytest.mark.parametrize(
    ("make", "error", "told"),
    [
        (lambda: cpd.Schedule(3), TypeError, "^spec: a format must be a name such as 'e4m3fn'"),
        (lambda: cpd.Schedule(STOCHASTIC, exempt="*.bias"), TypeError, "list of names or patterns"),
        (lambda: cpd.Schedule(STOCHASTIC, exempt=[1]), TypeError, "names or patterns, got int"),
        (lambda: cpd.Schedule(STOCHASTIC, exempt_spec="fp33"), ValueError, "^exempt_spec: unk"),
        (lambda: cpd.Schedule(STOCHASTIC, first_spec=3), TypeError, "^first_spec: a format"),
        (lambda: cpd.Schedule(STOCHASTIC, first_steps=-1), ValueError, "at least 0, got -1"),
        (lambda: cpd.Schedule(STOCHASTIC, first_steps=1.5), TypeError, "int"),
        (
            lambda: cpd.Schedule(STOCHASTIC, exempt=["*.bias", "*.scale"])._parts(NAMES, 0),
            ValueError,
            r"'\*\.scale' matches no tensor; the tensors are first.weight, first.bias",
        ),
        (
            lambda: cpd.simulate_all_reduce([[]], cpd.Schedule(STOCHASTIC), names=["a"], step=0),
            ValueError,
            "1 names but 0 tensors",
        ),
    ],
)
def test_mistakes_are_told(make, error, told):
    with pytest.raises(error, match=told):
        make()
