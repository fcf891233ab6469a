# SPDX-License-Identifier: Apache-2.0
"""Formats values, shares and sizes for error messages and reports."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from cpd import _core


def alternatives(names: Iterable[str]) -> str:
    """Joins names for an error message: commas, and "or" before the last name.

    >>> alternatives(["float32", "bfloat16", "float16"])
    'float32, bfloat16 or float16'
    """
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last


def shown(value: Any) -> str:
    """Returns `repr(value)`, shortened if it is long.

    A text with a slash (a path) is cut after 1,000 characters, any other text after 80.
    """
    try:
        text = repr(value)
    except ValueError:  # Python refuses to write the digits of this int
        return "an int of thousands of digits"
    except RecursionError:
        return f"a deeply nested {type(value).__name__}"
    if len(text) <= 80 and text.isascii():  # without C++, which torch.compile cannot trace
        return text
    return _core.shortened(text, 1000 if "/" in text else 80 if len(text) > 98 else 98)


def kind_of(value: Any) -> str:
    """Returns the name of a value's type for an error. For a list, includes the types of its items.

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
    """Returns a fraction in percent, with two decimals.

    A number below 0.01 % is in scientific notation with `digits` decimals.

    An infinite fraction gives a dash.

    >>> percent(0.1234), percent(1.234e-6), percent(0), percent(math.inf)
    ('12.34 %', '1.23e-04 %', '0.00 %', '–')
    """
    if math.isinf(share):
        return "–"
    is_tiny = share != 0 and abs(share) < 1e-4
    return f"{share * 100:.{digits if is_tiny else 2}{'e' if is_tiny else 'f'}} %"


def share(value: float) -> str:
    """Returns a fraction in percent, with three significant digits: 0.25 gives '25 %'."""
    return f"{100 * value:.3g} %"


def byte_size(number: int) -> str:
    """Returns a number of bytes with three significant digits: `'1.5 GB'`, `'12 bytes'`."""
    value, unit = float(number), "bytes"
    for larger in ("kB", "MB", "GB", "TB", "PB", "EB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{number} bytes" if unit == "bytes" else f"{value:.3g} {unit}"
