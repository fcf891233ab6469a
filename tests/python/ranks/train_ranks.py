# SPDX-License-Identifier: Apache-2.0
"""Runs each rank of the tests of training over processes (test_train_ranks.py)."""

import json

from cpd.comm import Communicator
from cpd_lab.train import RealRanks, TrainOptions, TrainResult, load_digits, train


def options_of(run: dict) -> TrainOptions:
    return TrainOptions(**{**run, **{n: tuple(run.get(n, ())) for n in ("exempt", "exempt_types")}})


def told(result: TrainResult) -> dict:
    """Returns all results of a training, after a conversion to JSON text and back."""
    layers = [vars(layer) for layer in result.layers]
    gradients = [[layer.flatten().tolist() for layer in node] for node in result.last_gradients]
    summary = {
        "weights": result.weights,
        "accuracy": result.accuracy,
        "loss": result.loss,
        "curves": result.curves,
        "layers": layers,
        "gradients": gradients,
    }
    return json.loads(json.dumps(summary))


def run_all(comm: Communicator, runs: list[dict]) -> list[dict]:
    digits = load_digits()
    results = []
    for run in runs:
        options, ranks = options_of(run), RealRanks(comm)
        of_digits = options.data == "digits"
        data = digits.first(options.images, options.tests) if of_digits else None
        result = train(options, data=data, histogram_epochs=(1,), ranks=ranks)
        results.append(told(result))
    return results
