# SPDX-License-Identifier: Apache-2.0
"""Makes a SystemVerilog package for a `$readmemh` file: a line as a packed struct."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cpd.hardware.vectors.fields import Field, line_digits
from cpd.numeric.shown import shown

_KEYWORDS = frozenset(
    """
    accept_on alias always always_comb always_ff always_latch and assert assign assume automatic
    before begin bind bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle
    checker class clocking cmos config const constraint context continue cover covergroup coverpoint
    cross deassign default defparam design disable dist do edge else end endcase endchecker endclass
    endclocking endconfig endfunction endgenerate endgroup endinterface endmodule endpackage
    endprimitive endprogram endproperty endspecify endsequence endtable endtask enum event
    eventually expect export extends extern final first_match for force foreach forever fork
    forkjoin function generate genvar global highz0 highz1 if iff ifnone ignore_bins illegal_bins
    implements implies import incdir include initial inout input inside instance int integer
    interconnect interface intersect join join_any join_none large let liblist library local
    localparam logic longint macromodule matches medium modport module nand negedge nettype new
    nexttime nmos nor noshowcancelled not notif0 notif1 null or output package packed parameter pmos
    posedge primitive priority program property protected pull0 pull1 pulldown pullup
    pulsestyle_ondetect pulsestyle_onevent pure rand randc randcase randsequence rcmos real realtime
    ref reg reject_on release repeat restrict return rnmos rpmos rtran rtranif0 rtranif1 s_always
    s_eventually s_nexttime s_until s_until_with scalared sequence shortint shortreal showcancelled
    signed small soft solve specify specparam static string strong strong0 strong1 struct super
    supply0 supply1 sync_accept_on sync_reject_on table tagged task this throughout time
    timeprecision timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg type typedef union
    unique unique0 unsigned until until_with untyped use uwire var vectored virtual void wait
    wait_order wand weak weak0 weak1 while wildcard wire with within wor xnor xor
    """.split()  # noqa: SIM905 - IEEE 1800-2017, Annex B
)


def identifier(text: str) -> str:
    """Returns `text` as a SystemVerilog identifier."""
    word = re.sub(r"\W", "_", text, flags=re.ASCII)
    return word if re.match(r"[A-Za-z_]", word) else f"v_{word}"


def check_identifier(what: str, name: str, taken: Sequence[str] = ()) -> None:
    """Raises ValueError unless the name is a simple SystemVerilog identifier and not in `taken`."""
    simple = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_$]*", name, re.ASCII)
    if simple is None or name in _KEYWORDS or name in taken:
        others = "".join(f", not {other}" for other in taken)
        raise ValueError(
            f"{what} must be a SystemVerilog identifier (letters, digits, _ and $, no keyword"
            f"{others}), got {shown(name)}"
        )


MEANINGS = {
    "special": "a term is NaN or infinite: the block's other signals are 0",
    "p_sign": "sign of each product",
    "p_exp": "exponent of each product, not normalized",
    "p_sig": "significand of each product, whole",
    "p_shift": "how far each product lies below max_exp",
    "p_cut": "low bits of p_sig that the shift drops",
    "c_sign": "sign of the running sum, which begins as c",
    "c_exp": "its exponent",
    "c_sig": "its significand",
    "c_shift": "how far it lies below max_exp",
    "c_cut": "low bits of c_sig that the shift drops",
    "max_exp": "greatest exponent of the terms",
    "n_sign": "sign of the total",
    "n_exp": "exponent of the total, normalized",
    "n_sig": "significand of the total, its leading one on top",
    "n_sticky": "a bit below n_sig is not 0",
    "block_sum": "the total, rounded to the unit's sum",
    "promoted": "the outer sum after each stretch",
    "start": "c, or the first term",
    "product": "each product, rounded",
    "partial": "each rounding of a chunk's sum",
    "tree": "each rounding of the tree",
    "term": "each term in the integer's units, c's first",
}
"""The meaning of each inner signal, by its name."""


def package_text(stem: str, fields: Sequence[Field], count: int) -> str:
    """Returns the package `<stem>_pkg`: COUNT lines, words of BITS bits, and the struct `line_t`.

    Each field is padded to a whole number of hexadecimal digits. In a field of several elements,
    element 0 is least significant.
    """
    name = identifier(stem)
    members = []
    for field in fields:
        pad = 4 * field.digits - field.bits
        if pad:
            members.append(f"    logic [{pad - 1}:0] {field.name}_pad;")
        elements = f"[{field.count - 1}:0]" if field.count > 1 else ""
        sign = " signed" if field.signed and field.count == 1 else ""
        meaning = MEANINGS.get(field.name, "") if field.role == "signal" else ""
        comment = f"  // {meaning}" if meaning else ""
        members.append(f"    logic{sign} {elements}[{field.width - 1}:0] {field.name};{comment}")
    bits = 4 * line_digits(fields)
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
