# SPDX-License-Identifier: Apache-2.0
"""Tests machines and networks given as names, files and texts, and the errors of invalid ones."""

import math
import pickle

import pytest

from cpd.study import Machine, Network
from cpd.study.machines import Round, seconds


def test_each_number_of_a_machine_has_a_source():
    for name, told in Machine.named().items():
        one = Machine(name)
        assert told["summary"] == one.summary != "", name
        wanted = {"gpus", "speed", "tflops", "beta", "beta_between", "codec_gbps"}
        wanted |= {"dollars"} if one.dollars else set()
        assert wanted == set(one.sources), name
        assert all(source in told["source"] for source in one.sources.values())
        assert (one.name, one) == (name, Machine(name))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("alexnet", 62_378_344),
        ("vgg19", 143_667_240),
        ("vgg-a", 132_863_336),
        ("bn-inception", 11_194_984),
        ("resnet50", 25_557_032),  # benchmarks/resnet50.h
        ("resnet110", 1_727_962),
        ("resnet152", 60_192_808),
        ("lstm", 13_000_000),
    ],
)
def test_parameters(name, values):
    found = Network(name)
    assert found.values == sum(math.prod(shape) for shape in found.shapes) == values
    published = float(found.published.removesuffix("M"))
    if name != "resnet110":  # 1M in Grubic et al., 1.7M in He et al.
        assert values / 1e6 == pytest.approx(published, rel=0.03)


def test_batches():
    small = Network("resnet50")
    assert [small.samples(ranks) for ranks in (1, 2, 8, 16, 64)] == [32, 64, 256, 256, 1024]
    assert small.samples(4, batch=8) == 32
    assert Network("vgg-a").samples(4) == 128
    assert set(Network.named()) >= {"alexnet", "lstm"}
    assert "Grubic" in Machine.named()["ec2-p2"]["source"]
    assert Network.named()["lstm"]["source"]


def test_a_step_takes_the_longer_level():
    both = Machine("alpha=1 beta=100 gpus=2", alpha_between=2.0, beta_between=10.0)
    assert seconds(both, [Round(1, 100, across=0, within=2)]) == 2.0
    assert seconds(both, [Round(1, 100, across=1, within=1)]) == 12.0
    assert seconds(both, [Round(3, 100, across=2, within=0)]) == 3 * 22.0
    assert seconds(both, [Round(1, 0, across=0, within=0)]) == 0.0
    shared = Machine(alpha=0, beta=100, shared=50, beta_between=1, gpus=2)
    assert seconds(shared, [Round(1, 100, across=0, within=2)]) == 1.0 + 4.0


def test_dollars_of_hosts():
    one = Machine("ec2-p2")
    assert one.hourly(16) == 14.4
    assert one.hourly(1) == pytest.approx(0.9)  # p2.xlarge
    assert one.hourly(17) == 2 * 14.4
    assert [one.hosts(ranks) for ranks in (1, 16, 17)] == [1, 1, 2]


def test_a_machine_in_words():
    one = Machine("alpha=1e-5 beta=1e9")
    assert (one.alpha, one.beta, one.alpha_between, one.beta_between) == (1e-5, 1e9) * 2
    assert (one.gpus, one.shared, one.port, one.name) == (1, 0.0, 0.0, "alpha=1e-5 beta=1e9")
    text = "alpha=1e-5 beta=1e9 gpus=8 alpha_between=2e-5 beta_between=1e8 shared=5e9 dollars=3"
    one = Machine(f"{text} speed=2 tflops=10")
    assert (one.alpha_between, one.beta_between) == (2e-5, 1e8)
    assert (one.alpha, one.beta, one.shared) == (1e-5, 1e9, 5e9)
    assert (one.gpus, one.dollars, one.speed, one.tflops) == (8, 3.0, 2.0, 10.0)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ec2", "did you mean ec2-p2"),
        ("nonsense", "there are ec2-p2, "),
        ("", "there are ec2-p2, "),
        ("alpha=1", "has no beta"),
        ("beta=1", "has no alpha"),
        ("alpha=x beta=1", "alpha must be a number"),
        ("alpha=1 beta=0", "beta must be finite and above 0"),
        ("alpha=-1 beta=1", "alpha must be finite and at least 0"),
        ("alpha=nan beta=1", "alpha must be finite"),
        ("alpha=1 beta=inf", "beta must be finite"),
        ("alpha=1 beta=1 gpus=0", "gpus must be at least 1"),
        ("alpha=1 beta=1 gpus=1.5", "gpus must be an integer"),
        ("alpha=1 beta=1 speed=0", "speed must be finite and above 0"),
        ("alpha=1 beta=1 dollars=-1", "dollars must be finite and at least 0"),
        ("alpha=1 alpha=2 beta=1", "given twice"),
        (
            "alpha=1 bta=1",
            r"a machine's key must be one of alpha, beta, .*got 'bta' \(did you mean beta",
        ),
        ("ec2-p3 dollars=1", "did you mean ec2-p2"),
        ("alpha='1 beta=1", "is not a machine"),
    ],
)
def test_wrong_texts(text, told):
    with pytest.raises(ValueError, match=told):
        Machine(text)


def test_files(tmp_path):
    good = tmp_path / "mine.toml"
    good.write_text("gpus = 4\ndollars = 3\nwithin = { alpha = 1e-5, bandwidth = 1e9 }\n")
    one = Machine(str(good))
    assert (one.name, one.gpus, one.alpha_between, one.beta_between, one.dollars) == (
        *("mine", 4, 1e-5, 1e9, 3.0),
    )
    good.write_text("[other]\nwithin = { alpha = 0, bandwidth = 1 }\n")
    assert Machine(good).name == "other"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpus = ", "no TOML"),
        ("gpus = 4\n", "needs alpha and beta"),
        (
            "alpha = 0\nbeta = 1\ndolars = 2\n",
            r"got 'dolars' \(did you mean dollars\?\)",
        ),
        ("within = 3\n", "within must be a table"),
        ("within = { alpha = 0 }\n", "has no beta"),
        (
            "within = { alpha = 0, bandwith = 1 }\n",
            r"a key of within must be .*got 'bandwith' \(did you mean bandwidth",
        ),
        ("within = { alpha = true, bandwidth = 1 }\n", "must be a number"),
        ("gpu = 2\nwithin = { alpha = 0, bandwidth = 1 }\n", "did you mean gpus"),
        ("gpus = 'x'\nwithin = { alpha = 0, bandwidth = 1 }\n", "gpus must be an integer"),
        ("gpus = 0\nwithin = { alpha = 0, bandwidth = 1 }\n", "gpus must be at least 1"),
    ],
)
def test_wrong_files(tmp_path, text, told):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        Machine(path)
    with pytest.raises(OSError, match="No such file"):
        Machine(tmp_path / "none.toml")


def test_wrong_names_of_networks():
    with pytest.raises(ValueError, match="did you mean resnet50"):
        Network("resnet5")
    with pytest.raises(ValueError, match="there are alexnet"):
        Network("transformer-xxl")
    with pytest.raises(TypeError, match="network must be a str"):
        Network(3)
    with pytest.raises(ValueError, match="a network needs a name or shapes"):
        Network(rate=3.0)
    with pytest.raises(ValueError, match="a size in shapes must be at least 0"):
        Network(shapes=[(2, -1)])


def test_keywords_replace_numbers():
    one = Machine("ec2-p2", dollars=10, beta=1e9)
    assert (one.dollars, one.beta, one.alpha, one.gpus) == (10.0, 1e9, 3.823e-3, 16)
    assert {"dollars", "beta"}.isdisjoint(one.sources)
    assert "gpus" in one.sources
    text = Machine("ec2-p2 dollars=10 beta=1e9")
    assert (text.dollars, text.beta, text.sources) == (one.dollars, one.beta, one.sources)
    assert Machine("alpha=1 beta=2", alpha=3).alpha_between == 3.0
    words = Machine(alpha=1e-5, beta=1e9, gpus=4)
    assert Machine(words.name) == words
    net = Network("resnet50", batches={4: 40})
    assert (net.samples(4), net.shapes) == (40, Network("resnet50").shapes)
    with pytest.raises(ValueError, match="a machine needs alpha and beta"):
        Machine(alpha=1.0)


def test_machines_are_values():
    one = Machine("dgx-1")
    assert pickle.loads(pickle.dumps(one)) == one == Machine("dgx-1")
    assert hash(one) == hash(Machine("dgx-1")) != hash(Machine("dgx-1", gpus=4))
    net = Network("lstm")
    assert pickle.loads(pickle.dumps(net)) == net
    assert {net: 1}[Network("lstm")] == 1


def test_levels_of_files_of_older_versions(tmp_path):
    """A machine's description from an older CPD may have tables `within` and `between`, for links
    within and between hosts. The key `port` of `within` is used only without a table `between`."""
    path = tmp_path / "old.toml"
    path.write_text("within = { alpha = 0, bandwidth = 8, port = 2 }\n")
    assert Machine(path).port == 2.0
    with path.open("a") as file:
        file.write("between = { alpha = 1, bandwidth = 4, shared = 3 }\n")
    one = Machine(path)
    assert (one.port, one.shared, one.alpha_between, one.beta_between) == (0.0, 0.0, 1.0, 4.0)
