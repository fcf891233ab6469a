# SPDX-License-Identifier: Apache-2.0
"""Refuses keywords of 0.7 that have another name now."""

from __future__ import annotations

from collections.abc import Mapping

from cpd.numeric.shown import shown


def refuse_renamed(function: str, given: Mapping[str, object], names: Mapping[str, str]) -> None:
    """Raises TypeError for keywords that `function` does not take.

    Args:
        function: The name of the function, for the error.
        given: The keywords that matched no parameter.
        names: The new name of each keyword of 0.7.

    >>> refuse_renamed("sum", {"dim": 0}, {"dim": "axis"})
    Traceback (most recent call last):
    TypeError: sum() takes axis= in place of dim=
    """
    for keyword in given:
        if keyword in names:
            raise TypeError(f"{function}() takes {names[keyword]}= in place of {keyword}=")
        raise TypeError(f"{function}() got an unexpected keyword argument {shown(keyword)}")
