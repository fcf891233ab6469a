# SPDX-License-Identifier: Apache-2.0
"""Calls operations that return a value and its IEEE flags. `value_and_flags` returns the value
alone, `flags_alone` the flags."""

from __future__ import annotations

from typing import Any

import cpd
import flags_oracle
import oracle
from by_keywords import by_keywords

OPERATIONS = {name: getattr(cpd, name) for name in flags_oracle.COUNTS}


def values_of(x: Any) -> list[oracle.Value]:
    return [oracle.value_from_double(float(v)) for v in x]


def value_and_flags(name: str, *args: Any, **how: Any) -> Any:
    return by_keywords(OPERATIONS[name], *args, **how)[0]


def flags_alone(name: str, *args: Any, **how: Any) -> Any:
    return by_keywords(OPERATIONS[name], *args, **how)[1]
