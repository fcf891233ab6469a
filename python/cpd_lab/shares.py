# SPDX-License-Identifier: Apache-2.0
"""Formats a share as a percentage."""


def percent(share: float) -> str:
    """Returns '12.3 %' for 0.123. '100 %' and '0 %' appear only for exactly 1 and 0."""
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    if share > 0.999:
        return "> 99.9 %"
    if share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"
