# SPDX-License-Identifier: Apache-2.0
"""Inputs that the tests of reductions over virtual ranks share."""

import numpy as np


def gradients(world, shapes=((3, 7), (2,), ()), seed=0, scale=1.0):
    """Returns random values for each rank and layer, over a few binades. Some values are zero."""
    rng = np.random.default_rng(seed)
    return [
        [
            np.asarray(
                rng.normal(size=shape)
                * np.exp2(rng.integers(-6, 3, shape))
                * (rng.random(shape) > 0.05)
                * scale,
                np.float32,
            )
            for shape in shapes
        ]
        for _ in range(world)
    ]
