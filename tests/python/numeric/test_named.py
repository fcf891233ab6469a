# SPDX-License-Identifier: Apache-2.0
"""Tests two methods of every spec class: `named()`, which describes the predefined specs by name,
and `replace()`, which returns a copy with other fields."""

from __future__ import annotations

import re
from typing import Any

import pytest

import cpd

CLASSES: dict[Any, tuple[str, ...]] = {
    cpd.Format: ("standard", "literature", "library"),
    cpd.Scaled: ("standard", "library"),
    cpd.Accumulator: ("replayed", "literature"),
    cpd.Codec: ("literature",),
}


@pytest.mark.parametrize("cls", CLASSES)
def test_each_name_is_a_spec_with_its_evidence(cls: Any) -> None:
    named = cls.named()
    assert len(named) >= 10
    for name, told in named.items():
        assert [*told][:3] == ["summary", "source", "evidence"]
        assert told["summary"]
        assert told["source"]
        assert told["evidence"] in CLASSES[cls]
        if cls is not cpd.Codec or name not in ("feedback", "blockwise", "quantized", "top_k"):
            assert isinstance(cls(name), cls)
    named.clear()
    assert cls.named()  # each call returns a new dict


def test_formats_are_named_by_their_texts() -> None:
    for name, told in cpd.Format.named().items():
        f = cpd.Format(name)
        assert f.name == name
        for number in re.findall(r"\bmax ([\d.]+)", told["summary"]):
            assert f.max == float(number)
        for number in re.findall(r"\b(\d+) bits", told["summary"]):
            assert f.bits == int(number)


def test_scaled_formats_are_what_their_summaries_say() -> None:
    for name, told in cpd.Scaled.named().items():
        q = cpd.Scaled(name)
        assert q.text == name
        head = re.match(r"(\d+) (?:values|steps)", told["summary"])
        assert (str(q.block) if head else "") == (head[1] if head else "")
        assert (q.scale.name == "e8m0") == ("power of two" in told["summary"])


REPLACED = [
    (cpd.Format("e4m3fn"), {"man": 2}, cpd.Format("e4m2fn")),
    (cpd.Scaled("mxfp8"), {"rule": "ceil", "element": "e5m2"}, cpd.Scaled("mxfp8-e5m2 rule=ceil")),
    (cpd.Accumulator("e4m3 kahan"), {"rounding": "up"}, cpd.Accumulator("e4m3 kahan rounding=up")),
    (cpd.Codec("qsgd bits=4", random_bits=8), {"bits": 2}, cpd.Codec("qsgd bits=2", random_bits=8)),
]


@pytest.mark.parametrize(("spec", "keys", "wanted"), REPLACED, ids=lambda one: str(one))
def test_replace_changes_these_keys_alone(spec: Any, keys: dict[str, Any], wanted: Any) -> None:
    before = str(spec)
    made = spec.replace(**keys)
    assert type(made) is type(spec)
    assert made == wanted
    assert str(spec) == before
    assert spec.replace() == spec
    assert spec.replace(**dict.fromkeys(keys)) == spec
    with pytest.raises((TypeError, ValueError), match="color"):
        spec.replace(color=3)
