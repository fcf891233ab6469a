# SPDX-License-Identifier: Apache-2.0
"""Bootstrap of choices by a measured error: how often chance would have led to another choice."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

RESAMPLES = 1000
SURE = 0.95
"""The share of resamples that decides a choice; with less it is a tie."""

Floats = npt.NDArray[np.float64]


def shares_of_wins(errors: Floats, references: Floats, weights: Floats) -> Floats:
    """Returns the share of the resamples in which each candidate wins.

    The winner has the least relative RMS times its weight. A resample draws the existing number of
    orders and blocks, with replacement, the same for all candidates. Of equal products the first
    wins. The draws are the same in each call.

    Args:
        errors: the sums of squared errors, [candidate, order of the ranks, block of the values].
        references: the sums of squared references, [block].
        weights: [candidate].

    Returns:
        The shares, [candidate].
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
    """Returns the fewest candidates, by number of wins, that together win in 95 % of the resamples.

    One candidate is a choice, several are a tie.
    """
    chosen: list[int] = []
    for candidate in np.argsort(-shares, kind="stable"):
        chosen.append(int(candidate))
        if shares[chosen].sum() >= SURE:
            break
    return chosen
