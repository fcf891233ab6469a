# SPDX-License-Identifier: Apache-2.0
"""Values and sizes as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cpd import _core


def alternatives(names: Iterable[str]) -> str:
    """Returns names as an error lists them.

    >>> alternatives(["float32", "bfloat16", "float16"])
    'float32, bfloat16 or float16'
    """
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def shown(value: Any) -> str:
    """Returns `repr(value)`, cut if it is long.

    A path is cut after 1,000 characters, all else after 80.
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write the digits of this int
        return "an int of thousands of digits"
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    if len(text) <= 80 and text.isascii():  # nothing of C++, which no compiler traces
        return text
    return _core.shortened(text, 1000 if "/" in text else 80 if len(text) > 98 else 98)


def kind_of(value: Any) -> str:
    """Returns the name of a value's type, and of the types in a list, as errors give it.

    >>> kind_of(3), kind_of(None), kind_of(int), kind_of(["2", 3])
    ('int', 'None', 'the class int', 'list of int, str')
    """
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    name = type(value).__name__
    if type(value) in (list, tuple) and value:
        return f"{name} of {', '.join(sorted({kind_of(item) for item in value}))}"
    return name


def percent(share: float, digits: int = 2) -> str:
    """Returns a share in percent: two decimals, or `digits` after the first one below 0.01 %.

    An infinite share is a dash.

    >>> percent(0.1234), percent(1.234e-6), percent(0), percent(math.inf)
    ('12.34 %', '1.23e-04 %', '0.00 %', '–')
    """
    if math.isinf(share):
        return "–"
    is_tiny = share != 0 and abs(share) < 1e-4
    return f"{share * 100:.{digits if is_tiny else 2}{'e' if is_tiny else 'f'}} %"


def share(value: float) -> str:
    """Returns a share of 1 in per cent, with three digits."""
    return f"{100 * value:.3g} %"


def byte_size(number: int) -> str:
    """Returns a number of bytes in three digits: `'1.5 GB'`, `'12 bytes'`."""
    value, unit = float(number), "bytes"
    for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{number} bytes" if unit == "bytes" else f"{value:.3g} {unit}"
