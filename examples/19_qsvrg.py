# SPDX-License-Identifier: Apache-2.0
"""Runs QSVRG, a variance-reduced SGD whose updates are quantized (QSGD, section 3.3).

The problem is ridge regression of images of ten digits on 96 random features: n = 960 weights x.
f is the mean of the losses f_j of the images. Four processors work together.

1. An epoch begins at the weights y. The processors sum grad f(y), which is not quantized.
2. In each of T steps every processor draws j at random and broadcasts
   u = Q(grad f_j(x) - grad f_j(y) + grad f(y)). Q is QSGD with the 2-norm of the whole vector,
   s = 31 levels (about the square root of n) and Elias codes.
3. The next epoch's y is the mean of this epoch's x.

Theorem 3.6 bounds the error after p epochs by 0.9^p, and the bits that a processor sends in an
epoch by (F + 2.8 n)(T + 1) + F n, where F = 32 is the number of bits of a float.

Run: python examples/19_qsvrg.py
"""

import argparse
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

import cpd
from cpd_lab.train import load_digits

Vector = npt.NDArray[np.float64]

FEATURES, CLASSES = 96, 10
DECAY = 0.1  # the weight of the ridge term
BITS, FLOAT_BITS = 2.8, 32
STEP = 0.2  # the step size is STEP / L, with L the smoothness of f_j


class Ridge:
    """The loss f(x) = mean of f_j(x), f_j(x) = |a_j x - b_j|^2 / 2 + decay |x|^2 / 2, where the
    weights x are a matrix. |a_j| = 1, so every f_j is (1 + decay)-smooth and decay-strongly
    convex."""

    def __init__(self, decay: float = DECAY) -> None:
        digits = load_digits()
        draw = np.random.RandomState(0)
        mixed = digits.train_x.double().numpy() @ draw.standard_normal((64, FEATURES))
        seen = np.maximum(mixed, 0)
        self.a: Vector = seen / np.linalg.norm(seen, axis=1, keepdims=True)
        self.b: Vector = np.eye(CLASSES)[digits.train_y.numpy()] - 1 / CLASSES
        self.decay = decay
        self.smooth = 1 + decay
        inner = self.a.T @ self.a / self.count + decay * np.eye(FEATURES)
        self.least = self.value(np.linalg.solve(inner, self.a.T @ self.b / self.count))

    @property
    def count(self) -> int:
        return len(self.a)

    def value(self, x: Vector) -> float:
        misses = self.a @ x - self.b
        return float((misses**2).sum() / self.count + self.decay * (x**2).sum()) / 2

    def gradient(self, x: Vector, rows: slice) -> Vector:
        """Returns the gradient at x of the mean of the losses f_j of the images `rows`."""
        a, b = self.a[rows], self.b[rows]
        return a.T @ (a @ x - b) / len(a) + self.decay * x


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="QSVRG on ridge regression.")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60, help="steps of an epoch (T)")
    parser.add_argument("--processors", type=int, default=4)
    options = parser.parse_args(arguments)
    problem = Ridge()
    n = FEATURES * CLASSES
    codec = cpd.Codec(f"qsgd s={round(n**0.5)} bucket={n} norm=2 coding=elias-dense")
    most = (FLOAT_BITS + BITS * n) * (options.steps + 1) + FLOAT_BITS * n
    print(f"{problem.count} terms of {n} weights, {options.processors} processors, {codec}")
    print(f"L / l = {problem.smooth / problem.decay:.3g}, {options.steps} steps an epoch")
    print(f"{'epoch':>5} {'error':>9} {'0.9^p':>9} {'bits':>9} {'at most':>9}  bits a value")
    y = np.zeros((FEATURES, CLASSES))
    begun = problem.value(y) - problem.least
    for p in range(1, options.epochs + 1):
        y, bits = epoch(problem, y, codec, options.steps, options.processors, p)
        error = (problem.value(y) - problem.least) / begun
        bits_a_weight = (bits - FLOAT_BITS * n) / (options.steps * n)
        print(
            f"{p:5} {error:9.1e} {0.9**p:9.2f} {bits:9.0f} {most:9.0f}  {bits_a_weight:.2f}",
            flush=True,
        )
        if error > 0.9**p or bits > most:
            raise SystemExit("the theorem does not hold here")


def epoch(
    problem: Ridge, y: Vector, codec: cpd.Codec, steps: int, processors: int, number: int
) -> tuple[Vector, float]:
    """Runs an epoch from the vector y. Returns the vector from which the next epoch starts, and the
    mean number of bits that a processor sent."""
    whole = broadcast_exactly(problem, y, processors)
    draw = np.random.RandomState([1, number])
    x, passed, packets = y, np.zeros_like(y), 0
    for t in range(steps):
        update = np.zeros_like(y)
        for processor in range(processors):
            j = draw.randint(problem.count)
            row = slice(j, j + 1)
            u = problem.gradient(x, row) - problem.gradient(y, row) + whole
            stream = (number * steps + t) * processors + processor
            packet = codec.encode(u.astype(np.float32), stream=stream)
            packets += packet.bytes
            update += packet.values / processors
        passed += x / steps
        x = x - STEP / problem.smooth * update
    return passed, 8 * packets / processors + FLOAT_BITS * y.size


def broadcast_exactly(problem: Ridge, y: Vector, processors: int) -> Vector:
    """Returns the gradient of the loss f at y, summed over processors. Each processor sends its
    part in float32."""
    bounds = np.linspace(0, problem.count, processors + 1).astype(int)
    total = np.zeros_like(y)
    for begin, end in itertools.pairwise(bounds):
        share = (end - begin) / problem.count
        total += (share * problem.gradient(y, slice(begin, end))).astype(np.float32)
    return total


if __name__ == "__main__":
    main()
