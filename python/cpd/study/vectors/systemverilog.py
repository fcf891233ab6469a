# SPDX-License-Identifier: Apache-2.0
"""The SystemVerilog package beside a `$readmemh` file: a word as a packed struct."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cpd.study.vectors.fields import Field


def identifier(text: str) -> str:
    """`text` as a SystemVerilog identifier."""
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return word if re.match(r"[A-Za-z_]", word) else f"v_{word}"


def package_text(stem: str, fields: Sequence[Field], count: int) -> str:
    """The package `<stem>_pkg`: COUNT lines, words of BITS bits, and the struct `line_t` of one.
    Pads fill each field to whole hexadecimal digits; element 0 of a field of several stands
    lowest."""
    name = identifier(stem)
    members = []
    for field in fields:
        pad = 4 * field.digits - field.bits
        if pad:
            members.append(f"    logic [{pad - 1}:0] {field.name}_pad;")
        elements = f"[{field.count - 1}:0]" if field.count > 1 else ""
        sign = " signed" if field.signed and field.count == 1 else ""
        members.append(f"    logic{sign} {elements}[{field.width - 1}:0] {field.name};")
    bits = 4 * sum(field.digits for field in fields)
    lines = [
        f"// One line of {stem}.hex: $readmemh into logic [BITS-1:0] lines [COUNT].",
        f"package {name}_pkg;",
        f"  localparam int COUNT = {count};",
        f"  localparam int BITS = {bits};",
        "  typedef struct packed {",
        *members,
        "  } line_t;",
        f"endpackage : {name}_pkg",
    ]
    return "\n".join(lines) + "\n"
