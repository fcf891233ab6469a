# SPDX-License-Identifier: Apache-2.0
"""Workers that train alone and meet; `help` shows the text of `cpd.parallel.outer`."""

from cpd.parallel import outer
from cpd.parallel.outer import DiLoCo, WeightAverage

__doc__ = outer.__doc__
__all__ = ["DiLoCo", "WeightAverage"]
