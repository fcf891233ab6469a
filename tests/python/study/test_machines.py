# SPDX-License-Identifier: Apache-2.0
"""Machines and networks as data: names, files, texts, and what is wrong with them."""

import math

import pytest

import cpd
from cpd.study import Link, Machine, machine, network
from cpd.study.costs import Round
from cpd.study.machines import machines
from cpd.study.networks import networks


def test_each_number_of_a_machine_has_a_source():
    for name, one in machines().items():
        assert one.summary, name
        wanted = {"gpus", "speed", "tflops", "within", "between", "codec_gbps"}
        wanted |= {"dollars"} if one.dollars else set()
        assert wanted == set(one.sources), name
        assert one is machine(name)


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
    found = network(name)
    assert found.values == sum(math.prod(shape) for shape in found.shapes) == values
    published = float(found.published.removesuffix("M"))
    if name != "resnet110":  # 1M in Grubic et al., 1.7M in He et al.
        assert values / 1e6 == pytest.approx(published, rel=0.03)


def test_batches():
    small = network("resnet50")
    assert [small.samples(ranks) for ranks in (1, 2, 8, 16, 64)] == [32, 64, 256, 256, 1024]
    assert small.samples(4, batch=8) == 32
    assert network("vgg-a").samples(4) == 128
    assert set(networks()) >= {"alexnet", "lstm"}


def test_a_step_takes_the_longer_level():
    both = Machine("two", Link(1.0, 100.0), Link(2.0, 10.0), gpus=2)
    assert both.seconds([Round(1, 100, across=0, within=2)]) == 2.0
    assert both.seconds([Round(1, 100, across=1, within=1)]) == 12.0
    assert both.seconds([Round(3, 100, across=2, within=0)]) == 3 * 22.0
    assert both.seconds([Round(1, 0, across=0, within=0)]) == 0.0
    shared = Machine("bus", Link(0.0, 100.0, shared=50.0), Link(0.0, 1.0), gpus=2)
    assert shared.seconds([Round(1, 100, across=0, within=2)]) == 1.0 + 4.0


def test_dollars_of_hosts():
    one = machine("ec2-p2")
    assert one.hourly(16) == 14.4
    assert one.hourly(1) == pytest.approx(0.9)  # p2.xlarge
    assert one.hourly(17) == 2 * 14.4
    assert [one.hosts(ranks) for ranks in (1, 16, 17)] == [1, 1, 2]


def test_a_machine_in_words():
    one = machine("alpha=1e-5 beta=1e9")
    assert (one.within, one.between, one.gpus) == (Link(1e-5, 1e9), Link(1e-5, 1e9), 1)
    text = "alpha=1e-5 beta=1e9 gpus=8 alpha_between=2e-5 beta_between=1e8 shared=5e9 dollars=3"
    one = machine(f"{text} speed=2 tflops=10")
    assert one.between == Link(2e-5, 1e8)
    assert one.within == Link(1e-5, 1e9, 5e9)
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
        ("alpha=1 beta=0", "bandwidth must be finite and above 0"),
        ("alpha=-1 beta=1", "alpha must be finite and at least 0"),
        ("alpha=nan beta=1", "alpha must be finite"),
        ("alpha=1 beta=inf", "bandwidth must be finite"),
        ("alpha=1 beta=1 gpus=0", "gpus must be at least 1"),
        ("alpha=1 beta=1 gpus=1.5", "gpus must be an integer"),
        ("alpha=1 beta=1 speed=0", "speed must be finite and above 0"),
        ("alpha=1 beta=1 dollars=-1", "dollars must be finite and at least 0"),
        ("alpha=1 alpha=2 beta=1", "given twice"),
        ("alpha=1 bta=1", "did you mean beta"),
        ("alpha='1 beta=1", "is no machine"),
    ],
)
def test_wrong_texts(text, told):
    with pytest.raises(ValueError, match=told):
        machine(text)


def test_files(tmp_path):
    good = tmp_path / "mine.toml"
    good.write_text("gpus = 4\ndollars = 3\nwithin = { alpha = 1e-5, bandwidth = 1e9 }\n")
    one = machine(str(good))
    assert (one.name, one.gpus, one.between, one.dollars) == ("mine", 4, Link(1e-5, 1e9), 3.0)
    good.write_text("[other]\nwithin = { alpha = 0, bandwidth = 1 }\n")
    assert machine(good).name == "other"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("gpus = ", "no TOML"),
        ("gpus = 4\n", "needs the table 'within'"),
        ("within = 3\n", "within must be a table"),
        ("within = { alpha = 0 }\n", "within needs bandwidth"),
        ("within = { alpha = 0, bandwith = 1 }\n", "did you mean bandwidth"),
        ("within = { alpha = true, bandwidth = 1 }\n", "must be a number"),
        ("gpu = 2\nwithin = { alpha = 0, bandwidth = 1 }\n", "did you mean gpus"),
        ("gpus = 'x'\nwithin = { alpha = 0, bandwidth = 1 }\n", "gpus must be an int"),
        ("gpus = 0\nwithin = { alpha = 0, bandwidth = 1 }\n", "gpus must be at least 1"),
    ],
)
def test_wrong_files(tmp_path, text, told):
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=told):
        machine(path)
    with pytest.raises(OSError, match="No such file"):
        machine(tmp_path / "none.toml")


def test_wrong_names_of_networks():
    with pytest.raises(ValueError, match="did you mean resnet50"):
        network("resnet5")
    with pytest.raises(ValueError, match="there are alexnet"):
        network("transformer-xxl")
    with pytest.raises(TypeError, match="name must be a str"):
        network(3)
    assert cpd.study.machine is machine
