# SPDX-License-Identifier: Apache-2.0
"""Tests the store of a study's measurements.

A stored result is complete or absent, and never the result of another measurement.
"""

import json

import pytest

from cpd.study.store import Store, digest


def identity(body):
    return body


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cells")


def test_what_is_written_is_read(store):
    key = digest({"format": "e4m3", "seed": 1})
    assert store.read(key, identity, pytest.fail) is None
    store.write(key, {"result": [1.5, None]})
    assert store.read(key, identity, pytest.fail) == {"key": key, "result": [1.5, None]}
    assert [path.name for path in store.folder.iterdir()] == [f"{key}.json"]


def test_the_order_of_keys_decides_nothing():
    assert digest({"a": 1, "b": [2, 3]}) == digest({"b": [2, 3], "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def damage_text(path):
    path.write_text(path.read_text()[:-9])


def damage_value(path):
    whole = json.loads(path.read_text())
    whole["body"]["result"] = 2
    path.write_text(json.dumps(whole))


def empty(path):
    path.write_text("")


def other_json(path):
    path.write_text("[1]")


@pytest.mark.parametrize("damage", [damage_text, damage_value, empty, other_json])
def test_a_damaged_file_is_named_and_counts_as_missing(store, damage):
    store.write("k", {"result": 1})
    damage(store.path("k"))
    told = []
    assert store.read("k", identity, told.append) is None
    assert len(told) == 1
    assert str(store.path("k")) in told[0]
    assert "counts as missing" in told[0]
    if damage is damage_value:
        assert "its SHA-256 is not that of its content" in told[0]


def test_a_file_of_another_name_is_not_taken(store):
    store.write("one", {"result": 1})
    store.path("one").rename(store.path("two"))
    told = []
    assert store.read("two", identity, told.append) is None
    assert "another cell" in told[0]


def test_what_the_reader_refuses_is_damaged(store):
    store.write("k", {"result": 1})
    told = []
    assert store.read("k", lambda body: body["losses"], told.append) is None
    assert "losses" in told[0]


def test_a_folder_that_cannot_be_made_is_an_oserror(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        Store(tmp_path / "file/cells").write("k", {})
