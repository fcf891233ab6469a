# SPDX-License-Identifier: Apache-2.0
"""Exact rationals for the oracles: GMP's, whose operations take a fifteenth of the time of
fractions.Fraction. `float` of one is rounded once, to nearest even (test_rationals.py)."""

from __future__ import annotations

from gmpy2 import mpq as Fraction

__all__ = ["Fraction"]
