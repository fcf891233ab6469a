# SPDX-License-Identifier: Apache-2.0
"""Makes binary64 operands whose sums and products lie at, or next to, points where rounding
changes."""

from __future__ import annotations

import math
import random

import numpy as np
import numpy.typing as npt

import oracle
from rationals import Fraction

TINY, LEAST, GREATEST = 2.0**-1074, 2.0**-1022, float.fromhex("0x1.fffffffffffffp1023")
EDGES = [
    *(0.0, TINY, 3 * TINY, LEAST, LEAST - TINY, GREATEST, math.inf, math.nan, 1.0, 2.0**-537),
    *(2.0**k * m for k in (-900, -700, -600, -474, -150, 128, 500, 511, 999) for m in (1, 1.5)),
    *(2.0**1000 * m for m in (1 - 2.0**-53, 1, 1 + 2.0**-52)),
]


def near(spec: oracle.Spec, generator: random.Random) -> float:
    """Returns a random number near a value of the format. The number is a value, a midpoint of two
    values, another point between them, or a binary64 neighbor of such a point."""
    code = generator.choice([0, 1, 2, spec.max_code, spec.max_code + 1, 1 << spec.man])
    code = generator.choice([code, generator.randrange(spec.max_code + 2)])
    low, high = spec.magnitude(code), spec.magnitude(code + 1)
    part = generator.choice(
        [Fraction(0), Fraction(1, 2), Fraction(generator.getrandbits(30), 2**30)]
    )
    x = float(low + (high - low) * part)
    x = generator.choice([x, math.nextafter(x, math.inf), math.nextafter(x, 0)])
    return generator.choice([x, -x])


def anything(spec: oracle.Spec, generator: random.Random) -> float:
    edge = generator.choice(EDGES)
    bits = np.uint64(generator.getrandbits(64)).view(np.float64).item()
    wide = math.ldexp(1 + generator.random(), generator.randrange(-1070, 1023))
    return generator.choice([near(spec, generator)] * 3 + [edge, -edge, bits, wide, -wide])


def operands(spec: oracle.Spec, n: int, seed: int) -> npt.NDArray[np.float64]:
    """Returns arrays x, y and z of `n` operands. Many of their sums and products are near a
    midpoint, cancel, underflow or overflow."""
    generator = random.Random(seed)
    rows = []
    with np.errstate(all="ignore"):
        for i in range(n):
            x, y, z = (np.float64(anything(spec, generator)) for _ in range(3))
            scale = np.float64(2.0) ** generator.randrange(-500, 500)
            part = np.float64(1 + generator.random())
            match i % 8:
                case 1:  # x y lies at or next to a point of the format
                    x = scale * part
                    y = np.float64(near(spec, generator)) / x
                case 2:  # z is minus the rounded x y, or a neighbor
                    x, y = scale * part, np.float64(near(spec, generator)) / scale
                    z = -(x * y)
                    z = generator.choice([z, np.nextafter(z, 0), np.nextafter(z, np.inf)])
                case 3:  # as case 2, at the ends of binary64's range
                    size = generator.choice([-1074, -1030, -1000, -900, 1000, 1020, 1023])
                    half = generator.randrange(-40, 41) + size // 2
                    x, y = np.ldexp(part, half), np.ldexp(1 + generator.random(), size - half)
                    z = generator.choice([-(x * y), np.nextafter(-(x * y), 0), z])
                case 4:  # x + y lies at or next to a point of the format
                    y = np.float64(near(spec, generator)) - x
                case 5:  # z is near a point of the format, x y is tiny
                    x, y = np.ldexp(part, -generator.randrange(1000)), np.float64(TINY * 5)
                    z = np.float64(near(spec, generator))
                case 6:  # x + y cancels, exactly or up to the last bit
                    y = -generator.choice([x, np.nextafter(x, np.inf)])
                    z = -x
            rows.append((x, y, z))
    return np.array(rows, np.float64).T
