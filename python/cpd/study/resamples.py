# SPDX-License-Identifier: Apache-2.0
"""Computes, by a bootstrap, the share of resamples in which each candidate is the best."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RESAMPLES = 1000
SURE = 0.95
"""A candidate that wins in this fraction of the resamples is the choice; else there is a tie."""

Floats = npt.NDArray[np.float64]


def shares_of_wins(errors: Floats, references: Floats, weights: Floats) -> Floats:
    """Returns the share of the resamples in which each candidate wins.

    The winner of a resample has the least relative RMS times weight; of equal products, the first
    candidate wins. From the N orders and M blocks of `errors`, a resample draws N orders and M
    blocks at random with replacement. It uses the same draws for all candidates. The random numbers
    are the same in each call.

    Args:
        errors: the sums of squared errors, with the indices [candidate, order of the ranks, block
            of the values].
        references: the sum of squared references in each block.
        weights: the weight of each candidate.

    Returns:
        The fraction of the resamples that each candidate wins.
    """
    _, orders, blocks = errors.shape
    rng = np.random.default_rng(0)
    of_orders = rng.multinomial(orders, np.full(orders, 1 / orders), RESAMPLES)
    of_blocks = rng.multinomial(blocks, np.full(blocks, 1 / blocks), RESAMPLES)
    above = np.einsum("cob,ro,rb->rc", errors, of_orders, of_blocks, optimize=True)
    below = orders * (of_blocks @ references)[:, None]
    squares = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    products = np.sqrt(squares) * weights
    return np.bincount(products.argmin(axis=1), minlength=len(errors)) / RESAMPLES


def undecided(shares: Floats) -> list[int]:
    """Returns the candidates that may be the best, by their shares of the wins in resamples.

    Together they have at least 95 % of the wins, as few candidates as possible. A single candidate
    is the choice; several candidates are a tie.
    """
    chosen: list[int] = []
    for candidate in np.argsort(-shares, kind="stable"):
        chosen.append(int(candidate))
        if shares[chosen].sum() >= SURE:
            break
    return chosen
