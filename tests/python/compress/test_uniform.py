# SPDX-License-Identifier: Apache-2.0
"""Compares the codec `uniform`, which sends values in uniform bins, with rational arithmetic
(compress_oracle_entropy): bytes, values, and the rule that chooses a layer's number of bits. A
trained network takes about the bits per parameter that the paper reports."""

from __future__ import annotations

import numpy as np
import pytest

import compress_oracle_entropy as oracle
import cpd
from reduce_oracle import elementwise_integer


def layer(kind: str, n: int) -> np.ndarray:
    generator = np.random.default_rng(n)
    if kind == "gaussian":
        return (0.1 * generator.standard_normal(n)).astype(np.float32)
    if kind == "laplace":
        return generator.laplace(0, 0.02, n).astype(np.float32)
    if kind == "grid":  # every value is on a border
        return generator.integers(-8, 9, n).astype(np.float32)
    return (2.0 ** generator.integers(-149, 127, n) * generator.choice([-1.0, 1.0], n)).astype(
        np.float32
    )


def same(expected: np.ndarray, got: np.ndarray) -> None:
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("coding", ["huffman", "fixed"])
@pytest.mark.parametrize("bits", [1, 2, 4, 8, 13, 17, 29, 30])
@pytest.mark.parametrize("kind", ["gaussian", "laplace", "grid", "wide"])
def test_packages_are_those_of_rationals(kind: str, bits: int, coding: str) -> None:
    codec = cpd.Codec(f"uniform bits={bits} coding={coding}")
    for n, special in [(1, None), (2, None), (700, None), (701, np.nan), (64, np.inf)]:
        x = layer(kind, n)
        if special is not None:
            x[n // 3] = special
        data, values = oracle.uniform(x, bits, coding)
        packet = codec.encode(x)
        assert packet.bytes == len(data)
        assert data in packet.data
        same(values, packet.values)


def test_two_packages() -> None:
    x = layer("laplace", oracle.PACKAGE + 300)
    data, values = oracle.uniform(x, 6, "huffman")
    packet = cpd.Codec("uniform bits=6").encode(x)
    assert data in packet.data
    same(values, packet.values)


@pytest.mark.parametrize("coding", ["huffman", "fixed"])
@pytest.mark.parametrize("bits", [1, 30])
def test_widest_range(bits: int, coding: str) -> None:
    most = np.finfo(np.float32).max
    x = np.array([-most, most, 0, 1e-45, -1], np.float32)
    data, values = oracle.uniform(x, bits, coding)
    packet = cpd.Codec(f"uniform bits={bits} coding={coding}").encode(x)
    assert data in packet.data
    same(values, packet.values)


@pytest.mark.parametrize("value", [0.0, -0.0, 3.25, -1e-45, 3e38, np.nan])
def test_one_bin(value: float) -> None:
    x = np.full(100, value, np.float32)
    data, values = oracle.uniform(x, 8, "huffman")
    packet = cpd.Codec("uniform bits=8").encode(x)
    assert data in packet.data
    same(values, packet.values)


@pytest.mark.few("", 3)
@pytest.mark.parametrize("sample", [1, 4, 9])
@pytest.mark.parametrize("fraction", [0.03, 0.5, 1.0])
@pytest.mark.parametrize("c", [0.0, 5.0, 6.0])
def test_bits_by_the_entropy(sample: int, fraction: float, c: float) -> None:
    codec = cpd.Codec(f"uniform c={c} sample={sample} fraction={fraction}", random_bits=8)
    for kind in ("gaussian", "laplace"):
        x = layer(kind, 2000)
        x[5] = np.inf
        for random in (0, 100, 255, None):
            drawn = elementwise_integer(0, 8, 7, 0) if random is None else random
            bits = oracle.sampled_bits(x, drawn, 8, c, sample, fraction)
            data, values = oracle.uniform(x, bits, "huffman")
            given = None if random is None else np.full(x.size, random)
            packet = codec.encode(x, random=given, seed=7)
            assert data in packet.data
            same(values, packet.values)


@pytest.mark.parametrize(
    ("options", "bits"),
    [
        ("c=3.5 sample=2 fraction=1", 6),  # four equal bins have 2 bits; a half is rounded up
        ("c=3.4 sample=2 fraction=1", 5),
        ("c=30 sample=2 fraction=1", 30),
        ("c=0 sample=2 fraction=0.00001", 1),
    ],
)
def test_bits_of_four_values(options: str, bits: int) -> None:
    x = np.arange(4, dtype=np.float32)
    assert oracle.uniform(x, bits, "huffman")[0] in cpd.Codec(f"uniform {options}").encode(x).data


def test_shift_scales_exactly() -> None:
    x = layer("gaussian", 1000)
    codec = cpd.Codec("uniform bits=7")
    _, values = oracle.uniform(8 * x, 7, "huffman")
    same(values / np.float32(8), codec.encode(x, shift=3).values)


@pytest.mark.parametrize(("c0", "c1"), [(1, 5), (1, 8), (0.25, 3.5), (1e-6, 12)])
def test_bits_by_the_gradient(c0: float, c1: float) -> None:
    x = layer("gaussian", 500)
    codec = cpd.Codec(f"uniform bits=gradient c0={c0} c1={c1}")
    states = cpd.compress.States()
    for rms in np.float32([0, 1e-5, 0.3, 0.75, 3, 1e6, 1e30]):
        states.set_gradient(2, rms)
        bits = oracle.gradient_bits(float(rms), c0, c1)
        data, values = oracle.uniform(x, bits, "huffman")
        packet = codec.encode(x, states=states, number=2)
        assert data in packet.data
        same(values, packet.values)


def test_bits_of_each_virtual_rank() -> None:
    ranks = [[layer("gaussian", n)[:300], layer("laplace", n)[:50]] for n in (400, 500)]
    spec = cpd.Reduce("uniform bits=gradient c1=4", exchange="gather")
    states = cpd.compress.States()
    states.set_gradient(7, 1.0)
    states.set_gradient(9, 3.0, rank=0)
    states.set_gradient(9, 1000.0, rank=1)
    got = cpd.simulate_all_reduce(ranks, spec, numbers=[7, 9], states=states)
    expected = [
        np.float32(sum(oracle.uniform(rank[at], bits[at], "huffman")[1] for rank, bits in whose))
        for whose in [list(zip(ranks, [(5, 6), (5, 14)], strict=True))]
        for at in (0, 1)
    ]
    for one, other in zip(expected, got, strict=True):
        same(one, other)


def test_no_gradient_no_bits() -> None:
    x = layer("gaussian", 100)
    text = "uniform bits=gradient"
    for name in (text, f"feedback {text}", f"top_k 0.5 {text}"):
        codec, states = cpd.Codec(name), cpd.compress.States()
        assert codec._needs_gradient
        with pytest.raises(ValueError, match="root mean square of the tensor's gradient"):
            codec.encode(x)
        with pytest.raises(ValueError, match="of the gradient of tensor 3 on rank 0"):
            codec.encode(x, states=states, number=3)
        for kept in (None, states):
            with pytest.raises(ValueError, match="of the gradient of tensor 0 on rank 0"):
                cpd.simulate_all_reduce([[x]], cpd.Reduce(name), states=kept)
        states.set_gradient(3, 0.5)
        codec.encode(x, states=states, number=3)
    with pytest.raises(ValueError, match="not known of sums"):
        cpd.Codec(f"blockwise {text}")


def test_ranks_without_a_gradient_refuse() -> None:
    spec = cpd.Reduce("uniform bits=gradient")
    x = layer("gaussian", 100)

    def call(comm: cpd.comm.Communicator) -> str:
        states = cpd.compress.States()
        if comm.rank == 0:
            states.set_gradient(0, 1.0)
        try:
            comm.all_reduce([x], spec, states=states, step=0)
        except (ValueError, cpd.comm.Mismatch) as error:
            states.set_gradient(0, 2.0)
            comm.all_reduce([x], spec, states=states, step=0)
            return str(error)
        return ""

    with cpd.comm.local(2) as group:
        told = group.run(call)
    assert all("gradient of tensor 0 on rank 1" in text for text in told), told


def test_gradients_are_kept_with_states() -> None:
    x = layer("gaussian", 500)
    codec = cpd.Codec("uniform bits=gradient c1=5")
    states = cpd.compress.States()
    states.set_gradient(0, 3.0)
    states.set_gradient(1, 2.0, rank=4)
    kept = states.state_dict()
    assert kept == {"layers": [], "gradients": [(0, None, 3.0), (1, 4, 2.0)]}
    other = cpd.compress.States()
    other.load_state_dict(kept)
    assert other.state_dict() == kept
    assert codec.encode(x, states=other).data == codec.encode(x, states=states).data
    other.reset(0)
    assert other.state_dict()["gradients"] == [(1, 4, 2.0)]
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="finite and not negative"):
            states.set_gradient(0, wrong)
    with pytest.raises(TypeError, match="rms must be a number"):
        states.set_gradient(0, "3")  # type: ignore[arg-type]


@pytest.mark.parametrize("rule", ["bits=5", "c=3 sample=4 fraction=0.1", "bits=9 coding=fixed"])
def test_results_are_encoded_again(rule: str) -> None:
    """With results=encoded, the rank that owns a slice also encodes its sums. Each 65,536 sums have
    bins of their own range. With exchange="gather" no sums are sent."""
    n = oracle.PACKAGE + 700
    ranks = [layer("laplace", n), layer("gaussian", n)]
    ranks[0][3], ranks[1][n - 2] = np.inf, np.nan
    coding = "fixed" if "fixed" in rule else "huffman"

    def binned(x: np.ndarray) -> np.ndarray:
        bits = int(rule[5]) if "bits" in rule else oracle.sampled_bits(x, 0, 24, 3, 4, 0.1)
        return oracle.uniform(x, bits, coding)[1]

    sums = binned(ranks[0]) + binned(ranks[1])
    again = np.concatenate([binned(sums[: oracle.PACKAGE]), binned(sums[oracle.PACKAGE :])])
    for exchange, expected in (("gather", sums), ("owner", again / np.float32(2))):
        spec = cpd.Reduce(
            f"uniform {rule} results=encoded", exchange=exchange, average=exchange == "owner"
        )
        [got] = cpd.simulate_all_reduce([[x] for x in ranks], spec)
        same(expected.astype(np.float32), got)
        with cpd.comm.local(2) as group:
            for [mine] in group.run(lambda comm, s=spec: comm.all_reduce([ranks[comm.rank]], s)):
                same(got, mine)


def test_traffic_of_encoded_results() -> None:
    """The paper reports about 9 times fewer bytes, with contributions and sums encoded. Here
    encoding both saves a factor of more than 5. With sums in fp32, the factor is between 1.5 and
    2."""
    ranks = [[layer("laplace", 400_000 + rank)[:400_000]] for rank in range(4)]

    def sent(text: str, exchange: str) -> int:
        spec = cpd.Reduce(text, exchange=exchange)
        with cpd.comm.local(4) as group:
            made = group.run(
                lambda comm: comm.all_reduce(ranks[comm.rank], spec, report=True, step=0)[1]
            )
        return sum(report.traffic.bytes_sent for report in made)

    plain = 4 * 2 * 3 / 4 * 400_000 * 4  # bytes of contributions and sums in fp32
    exact, encoded = (sent(f"uniform c=5{r}", "owner") for r in ("", " results=encoded"))
    assert 1.5 < plain / exact < 2
    assert plain / encoded > 5
    assert sent("uniform c=5 results=encoded", "gather") == sent("uniform c=5", "gather")


def test_results_have_no_gradient() -> None:
    with pytest.raises(ValueError, match="results=encoded takes bits=entropy or bits=N"):
        cpd.Codec("uniform bits=gradient results=encoded")
    assert cpd.Codec("uniform", bits=8, results="exact").text == "uniform bits=8 coding=huffman"


def test_what_was_chosen_is_reported() -> None:
    ranks = [
        [layer("laplace", n)[:3000], layer("gaussian", n)[:50], np.zeros(9, np.float32)]
        for n in (3000, 3001, 3002)
    ]
    spec = cpd.Reduce("uniform c=4 fraction=1")
    _, reports = cpd.simulate_all_reduce(ranks, spec, report=True)
    codec = cpd.Codec("uniform c=4 fraction=1")
    for at, report in enumerate(reports):
        layers = [rank[at] for rank in ranks]
        bits = [oracle.sampled_bits(x, 0, 24, 4, 4, 1) if x.any() else 0 for x in layers]
        assert report.bits == tuple(bits)
        packets = [oracle.uniform(x, n, "huffman") for x, n in zip(layers, bits, strict=True)]
        assert report.bytes == sum(len(data) for data, _ in packets)
        assert report.bytes == sum(codec.encode(x).bytes for x in layers)
        assert report.values == 3 * layers[0].size
        assert report.zeros == sum(int((values == 0).sum()) for _, values in packets)
        assert report.bits_a_value == 8 * report.bytes / report.values
        assert report.zeros_share == report.zeros / report.values
    assert reports[2].zeros_share == 1
    assert reports[2].bits == (0, 0, 0)
    for exchange in ("owner", "gather"):
        real = spec.replace(exchange=exchange)
        with cpd.comm.local(3) as group:
            made = group.run(
                lambda comm, s=real: comm.all_reduce(
                    [x.copy() for x in ranks[comm.rank]], s, report=True
                )[1]
            )
        assert [one.tensors for one in made] == [reports] * 3


def test_what_was_chosen_in_place() -> None:
    """If `out=` is the inputs, results overwrite the contributions. The report still describes the
    contributions."""
    ranks = [[layer("laplace", n)[:3000]] for n in (3000, 3001)]
    spec = cpd.Reduce("uniform")
    _, expected = cpd.simulate_all_reduce(ranks, spec, report=True)

    def call(comm: cpd.comm.Communicator) -> list[cpd.comm.TensorReport]:
        layers = [x.copy() for x in ranks[comm.rank]]
        return comm.all_reduce(layers, spec, out=layers, report=True, step=0)[1].tensors

    with cpd.comm.local(2) as group:
        assert group.run(call) == [expected] * 2


@pytest.mark.parametrize(
    ("wire", "bits"),
    [("e4m3", 8), ("terngrad", 2), ("terngrad coding=trits", 1.6), ("top_k 0.5", None)],
)
def test_reports_of_other_codecs(wire: str, bits: float | None) -> None:
    ranks = [[layer("gaussian", 4000 + n)[:4000]] for n in range(2)]
    _, [report] = cpd.simulate_all_reduce(ranks, cpd.Reduce(wire), report=True)
    assert report.bits == ()
    assert report.values == 8000
    if bits is not None:
        assert report.bits_a_value == pytest.approx(bits, rel=1e-3)
    if wire == "top_k 0.5":
        assert report.zeros_share == 0.5
        assert 16 < report.bits_a_value < 18
    assert report.zeros == report.underflowed  # no value was 0


def test_layouts_of_levels_are_the_figures() -> None:
    lengths = [len(oracle.elias(k)) for k in range(1, 32)]
    assert lengths == [1] + [3] * 2 + [6] * 4 + [7] * 8 + [11] * 16
    assert oracle.dense([0, 1, -2]) == "0" + "100" + "0" + "110" + "1"
    assert oracle.sparse([0, 1, -2]) == "110" + "100" + "0" + "0" + "0" + "1" + "100"


@pytest.fixture(scope="module")
def network() -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Trains a small network on handwritten digits. Returns its parameters (each layer's weight,
    then its bias) and the images and labels of a test set."""
    datasets = pytest.importorskip("sklearn.datasets")
    torch = pytest.importorskip("torch")
    pictures, digits = datasets.load_digits(return_X_y=True)
    x = torch.tensor(pictures / 16, dtype=torch.float32)
    y = torch.tensor(digits)
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 392),
        torch.nn.Tanh(),
        torch.nn.Linear(392, 50),
        torch.nn.Tanh(),
        torch.nn.Linear(50, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x[:1200]), y[:1200])
        loss = loss + 2e-4 * sum(p.abs().sum() for p in model.parameters())
        loss.backward()
        optimizer.step()
    layers = [p.detach().numpy() for p in model.parameters()]
    return layers, pictures[1200:] / 16, digits[1200:]


def accuracy(layers: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    for weight, bias in zip(layers[::2], layers[1::2], strict=True):
        x = x @ weight.T + bias
        if len(bias) != 10:
            x = np.tanh(x)
    return float((x.argmax(1) == y).mean())


def coded(layers: list[np.ndarray], name: str) -> tuple[list[np.ndarray], float]:
    """Encodes and decodes the weight matrices; biases stay unchanged. Returns the parameters and
    the bits that a weight takes."""
    codec = cpd.Codec(name)
    packets = [codec.encode(p) if p.ndim == 2 else None for p in layers]
    values = [p if q is None else q.values for p, q in zip(layers, packets, strict=True)]
    some = [q for q in packets if q is not None]
    return values, 8 * sum(q.bytes for q in some) / sum(q.size for q in some)


def test_eight_bits_keep_the_accuracy(network: tuple) -> None:
    layers, x, y = network
    plain = accuracy(layers, x, y)
    assert plain > 0.9
    assert abs(accuracy(coded(layers, "uniform bits=8")[0], x, y) - plain) < 0.01
    assert accuracy(coded(layers, "uniform bits=2")[0], x, y) < plain


def test_bits_a_parameter(network: tuple) -> None:
    """With c = 5, the paper reports 6.8 bits a parameter, and 3.55 after Huffman coding; with c =
    6, 3.78. Here, too, Huffman coding about halves the bits."""
    layers, x, y = network
    fixed = coded(layers, "uniform c=5 coding=fixed")[1]
    five, six = (coded(layers, f"uniform c={c}")[1] for c in (5, 6))
    assert 6 < fixed < 7.5
    assert 2.5 < five < 4
    assert five < six < five + 1
    plain = accuracy(layers, x, y)
    assert abs(accuracy(coded(layers, "uniform c=5")[0], x, y) - plain) < 0.01


def test_weights_do_not_compress_without_loss(network: tuple) -> None:
    """A general lossless compressor, the paper's baseline, saves little on weights."""
    zstandard = pytest.importorskip("zstandard")
    data = b"".join(p.tobytes() for p in network[0] if p.ndim == 2)
    bits = 32 * len(zstandard.ZstdCompressor(level=19).compress(data)) / len(data)
    assert 20 < bits < 32
    assert coded(network[0], "uniform c=5")[1] < bits / 3
