# SPDX-License-Identifier: Apache-2.0
"""The text of a share."""


def percent(share: float) -> str:
    """'12.3 %'; never '100 %' or '0 %' for a share that is not exactly that."""
    if share in (0, 1):
        return f"{share:.0%}".replace("%", " %")
    if share > 0.999:
        return "> 99.9 %"
    if share < 0.001:
        return "< 0.1 %"
    return f"{100 * share:.1f} %"
