# SPDX-License-Identifier: Apache-2.0
"""Tests that a study measures the same results in this process, in several processes, and in jobs
of a cluster."""

import functools
import os
import threading

import pytest

from cpd.study.jobs import _end, check_jobs, run_here, run_in_processes, run_on_cluster

PARTS = [1, 2, 3, 4, 5]


def squares(folder, parts):
    for part in parts:
        (folder / str(part)).write_text(str(os.getpid()))
        yield part * part


def test_here(tmp_path):
    found = run_here(PARTS, functools.partial(squares, tmp_path))
    assert next(found) == 1
    assert not (tmp_path / "2").exists()  # one after the other, as they are taken
    assert list(found) == [4, 9, 16, 25]


def test_over_processes(tmp_path):
    pytest.importorskip("joblib")
    found = run_in_processes(PARTS, functools.partial(squares, tmp_path), 2)
    assert sorted(found) == [1, 4, 9, 16, 25]
    workers = {(tmp_path / str(part)).read_text() for part in PARTS}
    assert str(os.getpid()) not in workers


def test_as_jobs_of_a_cluster(tmp_path):
    pytest.importorskip("submitit")
    found = run_on_cluster(
        PARTS, functools.partial(squares, tmp_path), cluster="debug", folder=tmp_path, jobs=2
    )
    assert sorted(found) == [1, 4, 9, 16, 25]


@pytest.mark.parametrize(
    ("jobs", "cluster", "folder", "what"),
    [
        (0, None, None, "jobs must be an int of at least 1, got 0"),
        (True, None, None, "got True"),
        (None, "slurms", "here", "cluster must be one of slurm, local, debug, got 'slurms'"),
        (None, "slurm", None, "a cluster needs a folder"),
    ],
)
def test_wrong_choices(jobs, cluster, folder, what):
    with pytest.raises(ValueError, match=what):
        check_jobs(jobs, cluster, folder)


@pytest.mark.parametrize(
    ("name", "error", "is_reported"),
    [
        ("ExecutorManagerThread", KeyError, False),
        ("ExecutorManagerThread", IndexError, True),
        ("another", KeyError, True),
    ],
)
def test_lokys_thread_ends_by_a_key_error(monkeypatch, name, error, is_reported):
    """A KeyError in the manager thread of loky (a process pool) is ignored; others are reported."""
    reported = []
    monkeypatch.setattr(threading, "excepthook", reported.append)

    def parts():
        try:
            yield
        finally:
            thread = threading.Thread(target=raising, name=name)
            thread.start()
            thread.join()

    def raising():
        raise error

    begun = parts()
    next(begun)
    _end(begun)
    assert [one.exc_type for one in reported] == [error] * is_reported
    assert threading.excepthook == reported.append
