# SPDX-License-Identifier: Apache-2.0
"""Tests the predicted time of a training step against times computed by hand."""

import math

import numpy as np
import pytest

import cpd
from cpd.study import Machine, Network, StepTime, step_time
from cpd.study.costs import agreement, rounds, transfer_seconds
from cpd.study.machines import Round, seconds
from cpd.study.step_rows import StepRow, mark_front, step_rows
from cpd.study.throughput import codec_values, measured_rate

EIGHT = Network(shapes=[(8,)], batch=1)
FREE = math.inf
HIERARCHICAL = "{} order=ring exchange=hierarchical group_size={}"


def messages(wire, ranks, text, net=EIGHT, **options):
    return step_time(net, text, ranks, wire, compute=0.0, codec_gbps=FREE, **options)


# ---- by hand ----------------------------------------------------------------------------------


def test_two_ranks_by_hand():
    """The predicted messages of two ranks equal a computation by hand.

    Each rank sends one half of the layer to the other rank, which owns that half. Then each rank
    sends the sums of its own half. In fp32, each message has 16 bytes.
    """
    found = messages("fp32", 2, "alpha=3 beta=8")
    assert (found.messages, found.steps, found.bytes_sent) == (2 * (3 + 16 / 8), 2, 32)
    assert messages("e4m3", 2, "alpha=3 beta=8").messages == 2 * (3 + 4 / 8)


@pytest.mark.parametrize(
    ("spec", "steps"),
    [
        ("fp32", 8),
        ("fp32 order=ring exchange=ring", 8),
        ("fp32 exchange=gather", 4),
        (HIERARCHICAL.format("fp32", 2), 8),
    ],
)
def test_latency_alone(spec, steps):
    found = messages(spec, 5, "alpha=0.5 beta=1e30")
    assert found.messages == pytest.approx(0.5 * steps)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_bandwidth_alone(ranks):
    net = Network(shapes=((24 * ranks,),))
    found = messages("fp32", ranks, "alpha=0 beta=4", net)
    assert found.messages == pytest.approx(2 * (ranks - 1) / ranks * net.values)
    assert messages("fp32", 1, "alpha=1 beta=4", net).messages == 0


AGREED = [
    ("e4m3", 0),
    ("e4m3 aps", 3 * 4),  # of two layers and of whether any value is infinite
    ("e4m3 aps=paper", 3 * 4),
    ("fp32 accumulator=fp32 result=e3m0", 3 * 4),  # has no NaN
    ("terngrad", 2 * 4),  # one scale a layer, of all ranks
]


@pytest.mark.parametrize(("wire", "agreed"), AGREED)
@pytest.mark.parametrize(("ranks", "steps"), [(1, 0), (2, 1), (4, 2), (5, 3), (8, 3)])
def test_what_ranks_agree_on_first_by_hand(wire, agreed, ranks, steps):
    """Before some all-reduces, ranks first agree on scales, in ceil(log2(ranks)) steps.

    `agreed` is the number of bytes that a rank sends in each of these steps. In step k, a rank
    sends the bytes to the rank that is 2^k places further.
    """
    two = Network(shapes=((8, 5), (3,)), batch=1)
    spec = cpd.Reduce(wire)
    plain = transfer_seconds(spec, Machine("alpha=3 beta=8"), ranks, two.shapes)
    sent = cpd.study.cost(spec, ranks, two.shapes)
    found = messages(wire, ranks, "alpha=3 beta=8", two)
    steps = steps if agreed else 0
    assert found.messages == pytest.approx(plain + steps * (3 + agreed / 8))
    assert found.bytes_sent == sent.bytes_sent + steps * agreed
    assert found.steps == sent.steps + steps


def test_what_ranks_agree_on_first_goes_between_hosts():
    """To agree on a scale, six ranks on three hosts send the predicted messages between hosts.

    When each rank sends to the next rank, one message leaves each host of two ranks. When each rank
    sends to the rank two or four places further, two messages leave each host.
    """
    found = agreement(cpd.Reduce("e4m3 aps"), 6, [7], per_host=2)
    assert found == [(1, 8, 1, 1), (2, 8, 2, 0)]
    with pytest.raises(ValueError, match="ranks of a host must be at least 1, got 0"):
        agreement(cpd.Reduce("e4m3 aps"), 6, [7], per_host=0)


@pytest.mark.parametrize(("wire", "agreed"), AGREED)
@pytest.mark.parametrize("ranks", [2, 5])
def test_ranks_send_what_is_predicted_first(wire, agreed, ranks):
    """Real ranks send the predicted bytes to agree on scales: 4 for each layer and step."""

    def others(layers):
        """Returns the bytes that all ranks send in addition to an all-reduce without a scale."""
        x = [np.ones(3, np.float32) for _ in range(layers)]
        with cpd.comm.local(ranks) as group:
            reports = group.run(lambda comm: comm.all_reduce(x, cpd.Reduce(wire), report=True))
            base = group.run(lambda comm: comm.all_reduce(x, cpd.Reduce("e4m3"), report=True))
        bytes_, of_base = (
            sum(report.traffic.header_bytes for _, report in some) for some in (reports, base)
        )
        return bytes_ - of_base

    found = agreement(cpd.Reduce(wire), ranks, [3] * 9, per_host=1)
    fewer = agreement(cpd.Reduce(wire), ranks, [3] * 2, per_host=1)
    grown = sum(s * b for s, b, *_ in found) - sum(s * b for s, b, *_ in fewer)
    assert grown == (7 * 4 * math.ceil(math.log2(ranks)) if agreed else 0)
    assert others(9) - others(2) == ranks * grown


def test_what_overlaps():
    one = StepTime(2, 10, computation=2.0, codec=1.0, messages=3.0, bytes_sent=0, dollars_an_hour=6)
    assert (one.apart, one.overlapped) == (6.0, 5.0)
    assert one.samples_a_second == 10 / 6
    assert one.dollars(600) == pytest.approx(6.0)


def test_codec_seconds():
    """In exchange `owner` of two ranks, a rank encodes 1.5 codes and decodes one for each value.

    A rank encodes all its contributions, and the sums of the half of the values that it owns.
    """
    rate = (1e-9, 2e-9)  # one, two bytes a second
    found = step_time(EIGHT, Machine("alpha=0 beta=1"), 2, "e4m3", compute=0, codec_gbps=rate)
    assert found.codec == pytest.approx(8 * 4 * (1.5 + 1 / 2))
    spec = cpd.Reduce("e4m3", exchange="gather")
    assert codec_values(spec, 8) == (1.0, 7.0)
    assert codec_values(cpd.Reduce("fp32"), 8) == codec_values(spec, 1) == (0.0, 0.0)
    assert measured_rate("e4m3")[1] > 0


def test_the_computation():
    on = Machine("alpha=0 beta=1e30 speed=2")
    found = step_time(Network("resnet50"), on, 4)
    assert found.computation == pytest.approx(128 / 4 / (47.2 * 2))
    assert step_time(Network("resnet50"), on, 4, batch=10).computation == pytest.approx(10 / 94.4)
    assert step_time(Network("lstm"), on, 2, compute=0.5).computation == 0.5


def test_mean_code_lengths():
    """Predictions for a codec with variable code lengths assume the greatest length.

    If the mean number of bits for a value is given, predictions use the mean.
    """
    net, text = Network(shapes=((64, 512),)), "alpha=0 beta=1"
    wire = "qsgd bits=4 bucket=512 coding=elias-sparse"
    most = messages(wire, 2, text, net)
    mean = messages(wire, 2, text, net, bits=3.0)
    assert not most.exact
    assert mean.messages == pytest.approx(3 / 32 * messages("fp32", 2, text, net).messages)
    assert mean.bytes_sent == pytest.approx(3 / 8 * net.values)
    assert mean.messages < most.messages


def test_rows_of_shapes_count():
    """The bytes depend on a layer's shape: 64 rows have 64 scales, 512 values in a row have one."""
    text = "alpha=0 beta=1"
    by_shape = messages("int8_rows", 2, text, Network(shapes=((64, 8),)))
    assert by_shape.bytes_sent == by_shape.messages == 64 * (8 + 4)
    assert messages("int8_rows", 2, text, Network(shapes=((512,),))).bytes_sent == 512 + 4


# ---- where a codec's rate is from ---------------------------------------------------------------


def test_no_codec_is_timed_unless_asked(monkeypatch):
    def refuse(text):
        raise AssertionError(f"{text} was timed")

    monkeypatch.setattr("cpd.study.throughput.measured_rate", refuse)
    on = Machine("nvlink-like")
    found = step_time(EIGHT, on, 8, "bf16", compute=0)
    encoded, decoded = codec_values(cpd.Reduce("bf16"), 8)
    assert found.codec == pytest.approx((encoded + decoded) * 8 * 4e-9 / 2700)
    assert found.codec_source.startswith(on.sources["codec_gbps"])
    assert "2,700 GB/s" in found.codec_source
    given = step_time(EIGHT, on, 8, "bf16", compute=0, codec_gbps=(5.0, 5.0))
    assert given.codec_source == "given: 5 GB/s"
    text = "alpha=0 beta=1"
    default = step_time(EIGHT, Machine(text), 8, "bf16", compute=0)
    assert default.codec_source.startswith("default, an H200's")
    own = step_time(EIGHT, Machine(f"{text} codec_gbps=2"), 8, "bf16", compute=0)
    assert own.codec == pytest.approx((encoded + decoded) * 8 * 4e-9 / 2)
    assert step_time(EIGHT, on, 8, "fp32", compute=0).codec_source == ""
    with pytest.raises(ValueError, match="'measured', got 'here'"):
        step_time(EIGHT, on, 8, "bf16", compute=0, codec_gbps="here")


def test_a_codec_is_timed_when_asked(monkeypatch):
    monkeypatch.setattr("cpd.study.throughput.measured_rate", lambda text: (1.0, 2.0))
    found = step_time(EIGHT, Machine("nvlink-like"), 8, "bf16", compute=0, codec_gbps="measured")
    assert found.codec_source == "bf16 measured on this CPU: 1 GB/s encoded, 2 decoded"


# ---- two levels -------------------------------------------------------------------------------


def test_a_gpu_sends_through_its_own_port():
    """A GPU sends to other hosts only through its own port, even if other ports are idle.

    Llama-3 8B has bf16 gradients on 512 ranks. In every step of a ring, one GPU of each host sends
    1/512 of them at 50 GB/s. Only eight GPUs at once use the host's 400 GB/s.
    """
    on = Machine("nvlink-like")
    assert seconds(on, [Round(1, 1e9, across=1, within=0)]) == pytest.approx(0.02, rel=1e-3)
    assert seconds(on, [Round(1, 1e9, across=8, within=0)]) == pytest.approx(0.02, rel=1e-3)
    assert seconds(on, [Round(1, 1e9, across=16, within=0)]) == pytest.approx(0.04, rel=1e-3)
    net = Network(shapes=((8_030_261_248,),))
    ring = "bf16 order=ring exchange=ring"
    ring = step_time(net, on, 512, ring, compute=0, codec_gbps=FREE)
    share = math.ceil(8_030_261_248 / 512) * 2
    assert ring.messages == pytest.approx(2 * 511 * (5e-6 + share / 5e10))
    spec = HIERARCHICAL.format("bf16", 8)
    masters = 2 * 63 * (5e-6 + 8_030_261_248 / 64 * 2 / 5e10)  # one GPU of each host, twice a ring
    found = step_time(net, on, 512, spec, compute=0, codec_gbps=FREE).messages
    inside = 4 * 7 * (3e-6 + 8_030_261_248 / 8 * 2 / 4.5e11)
    assert masters < found < masters + 4 * inside
    without = Machine("alpha=3e-6 beta=4.5e11 gpus=8 alpha_between=5e-6 beta_between=4e11")
    assert seconds(without, [Round(1, 1e9, 1, 0)]) == pytest.approx(0.0025, rel=1e-2)
    one = Machine(f"{without.name} port=5e10")
    assert seconds(one, [Round(1, 1e9, 1, 0)]) == seconds(on, [Round(1, 1e9, 1, 0)])
    with pytest.raises(ValueError, match="port must be finite and at least 0"):
        Machine(f"{without.name} port=-1")


SPECS = [
    "e4m3",
    "e4m3 order=ring exchange=ring",
    "e4m3 exchange=gather",
    *(HIERARCHICAL.format("e4m3", size) for size in (2, 3, 4, 8)),
]


@pytest.mark.parametrize("text", SPECS)
@pytest.mark.parametrize("ranks", [8, 11])
def test_one_level_is_the_time_of_transfers(text, ranks):
    spec = cpd.Reduce(text)
    sizes = [(100, 7), 13]
    alpha, beta = 1e-3, 1e-6
    wanted = transfer_seconds(spec, Machine(alpha=alpha, beta=1 / beta), ranks, sizes)
    for hosts in (1, 3, 4, 16):
        found = rounds(spec, ranks, sizes, per_host=hosts)
        assert sum(one.steps * (alpha + beta * one.bytes) for one in found) == pytest.approx(wanted)


@pytest.mark.parametrize("ranks", range(2, 14))
@pytest.mark.parametrize("per_host", [1, 2, 3, 4, 5, 13])
def test_where_messages_of_owner_go(ranks, per_host):
    """The messages between hosts in exchange `owner` equal a count over all pairs of ranks.

    In step d, every rank sends to the rank that is d places further.
    """
    found = rounds(cpd.Reduce("fp32"), ranks, [ranks * 4], per_host=per_host)
    wanted: dict[tuple[int, int], int] = {}
    for step in range(1, ranks):
        pairs = [(rank // per_host, (rank + step) % ranks // per_host) for rank in range(ranks)]
        hosts = range((ranks - 1) // per_host + 1)
        across = max(sum(a == host != b for a, b in pairs) for host in hosts)
        within = max(sum(a == host == b for a, b in pairs) for host in hosts)
        wanted[across, within] = wanted.get((across, within), 0) + 2
    assert {(one.across, one.within): one.steps for one in found} == wanted
    assert {one.bytes for one in found} == {16}


def test_groups_of_hosts_cross_once():
    """If each group of ranks is one host, only one rank of each group (the master) sends between
    hosts, one message at a time."""
    spec = cpd.Reduce(HIERARCHICAL.format("fp32", 4))
    found = rounds(spec, 16, [1600], per_host=4)
    assert sum(one.steps for one in found if one.across) == 2 * (4 - 1)
    assert all(one.across == 1 and one.within == 0 for one in found if one.across)
    assert sum(one.steps for one in found if one.within) == 4 * (4 - 1)
    two = rounds(spec, 16, [1600], per_host=8)
    assert sum(one.steps for one in two if one.across) == 2 * (4 - 1)
    three = rounds(spec, 16, [1600], per_host=3)  # groups across hosts
    assert sum(one.steps for one in three) == sum(one.steps for one in found)


def test_a_hosts_link_is_shared():
    """The GPUs of a host share its link.

    Four ranks are on two hosts. In two of six steps, both GPUs of a host send to the other host.
    """
    on = Machine(alpha=0, beta=1e30, beta_between=4, gpus=2)
    found = step_time(Network(shapes=((16,),)), on, 4, compute=0.0)
    assert found.messages == 4 * (16 / 4) + 2 * (2 * 16 / 4)


def test_many_ranks():
    on = Machine("nvlink-like")
    spec = HIERARCHICAL.format("e4m3", 8)
    found = step_time(EIGHT, on, 65536, spec, compute=1.0, codec_gbps=FREE)
    assert found.steps == 4 * 7 + 2 * (65536 // 8 - 1)
    assert found.apart > 1


# ---- rows and the front -----------------------------------------------------------------------


def test_rows_and_their_front():
    on = Machine("alpha=1e-3 beta=1e6 dollars=3.6")
    net = Network(shapes=((1000, 10),), batch=4)
    rows = step_rows(
        net,
        on,
        [2, 4],
        ["fp32", "e4m3 aps", "qsgd bits=4 bucket=512"],
        compute=0.01,
        codec_gbps=FREE,
        roundoffs={"fp32": 0.0, "e4m3 aps": 0.1, "qsgd bits=4 bucket=512": 0.3},
    )
    assert [(row.wire.split()[0], row.step.ranks) for row in rows] == [
        (wire, ranks) for wire in ("fp32", "e4m3", "qsgd") for ranks in (2, 4)
    ]
    assert rows[0].speedup == 1 < rows[2].speedup < rows[4].speedup
    assert all(row.front for row in rows if row.step.ranks == 2)
    assert rows[0].price == pytest.approx(2 * 3.6 / 3600 * rows[0].step.apart / 8)
    assert rows[0].json()["step_seconds"] == rows[0].step.apart


def test_a_row_that_another_beats_is_not_on_the_front():
    def row(seconds, error, samples=1):
        step = StepTime(1, samples, computation=seconds, codec=0, messages=0, bytes_sent=0)
        return StepRow("x", step, 1.0, 1.0, roundoff=error)

    rows = [row(1, 0.1), row(2, 0.1), row(2, 0.05), row(1, 0.1), row(3, 0.2)]
    mark_front(rows)
    assert [one.front for one in rows] == [True, False, True, True, False]


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"compute": -1.0}, ValueError, "compute must be finite and at least 0"),
        ({"compute": math.nan}, ValueError, "compute must be finite"),
        ({"compute": 1.0, "bits": 0.0}, ValueError, "bits must be finite and above 0"),
        ({}, ValueError, "a network is not published"),
        ({"compute": "1"}, TypeError, "compute"),
        ({"compute": 1.0, "codec_gbps": (1, 2, 3)}, ValueError, "codec_gbps must be GB/s, a pair"),
        ({"compute": 1.0, "codec_gbps": {}}, TypeError, "codec_gbps must be GB/s, a pair"),
        (
            {"compute": 1.0, "codec_gbps": (1.0, 0.0)},
            ValueError,
            "codec_gbps must be above 0 GB/s, got 0.0",
        ),
    ],
)
def test_wrong_steps(options, error, told):
    with pytest.raises(error, match=told):
        step_time(EIGHT, Machine("alpha=1 beta=1"), 2, **options)


def test_more_wrong_steps():
    on = Machine("alpha=1 beta=1")
    with pytest.raises(ValueError, match="speed of a GPU of alpha=1 beta=1 is not known"):
        step_time(Network("alexnet"), on, 2)
    with pytest.raises(ValueError, match="0"):
        step_time(EIGHT, on, 0, compute=1.0)
    with pytest.raises(ValueError, match="nonsense"):
        step_time(EIGHT, on, 2, "nonsense", compute=1.0)
    with pytest.raises(ValueError, match="ranks of a host must be at least 1, got 0"):
        rounds(cpd.Reduce("fp32"), 2, [4], per_host=0)


def test_largest_magnitudes_decide_whether_values_are_packed():
    """The largest magnitudes decide whether ranks send sums in the format or in binary32.

    e3m0 has no code for NaN, so sums that may overflow are sent in binary32. Ranks first agree on
    the largest magnitude: each sends 8 bytes, 4 for the only layer and 4 in addition.
    """
    small = messages("e3m0", 2, "alpha=0 beta=1", largest=1.0)
    assert small.messages == 8 + messages("fp32", 2, "alpha=0 beta=1").messages / 8
    assert messages("e3m0", 2, "alpha=0 beta=1").messages > small.messages
