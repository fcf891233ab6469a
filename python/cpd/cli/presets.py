# SPDX-License-Identifier: Apache-2.0
"""Prints matrix units for `cpd show`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cpd.cli.output import new_console, new_table
from cpd.numeric.accumulator import UNCUT, Accumulator, Unit, as_unit

if TYPE_CHECKING:
    from rich.table import Table


def print_units(known: list[str]) -> None:
    """Prints a table of the matrix units named in `known`, then the sources of the table's data."""
    console = new_console()
    console.print(_table(known))
    for line in _sources(known):
        console.print(line, soft_wrap=True)


def describe(preset: str) -> dict[str, Any]:
    """Returns the data of a matrix unit for JSON."""
    told = Accumulator.named()[preset]
    unit = _unit(preset)
    cuts = unit.adder not in UNCUT
    scales = (
        {} if unit.scale is None else {"scale": str(unit.scale), "scale_block": unit.scale_block}
    )
    return {
        "name": preset,
        "operands": [str(unit.a), str(unit.b)],
        "block": unit.block,
        "fraction_bits": unit.fraction_bits if cuts else None,
        "min_exponent": unit.min_exponent if cuts else None,
        "sum": str(unit.sum),
        "rounding": unit.sum_rounding,
        "promote": unit.promote,
        **scales,
        **({} if unit.adder == "aligned" else {"adder": unit.adder}),
        "outputs": _outputs(preset),
        "nan": _nans(preset),
        "evidence": told["evidence"],
        "source": told["source"],
        "text": str(unit),
    }


def _unit(preset: str) -> Unit:
    unit = as_unit(Accumulator(preset))
    assert unit is not None
    return unit


def _outputs(preset: str) -> list[str]:
    """Returns the result formats (fp32, fp16) that CPD supports for the matrix unit `preset`."""
    known = []
    for name in ("fp32", "fp16"):
        try:
            Accumulator(name, scheme=preset)
        except ValueError:
            continue
        known.append(name)
    return known


def _nans(preset: str) -> dict[str, str]:
    """Returns the bit pattern of the unit's NaN for each result format, if it is known."""
    nan = Accumulator.named()[preset]["nan"]
    digits = {"fp32": 8, "fp16": 4}
    return {name: nan[: digits[name]] for name in _outputs(preset) if nan}


def _table(presets: list[str]) -> Table:
    table = new_table("Preset", "Oper-\nand", "Block", "Kept\nbits", "Sum", "Rounding", "Evidence")
    table.columns[0].no_wrap = True
    table.collapse_padding = True
    for column in table.columns[4:]:
        column.justify = "left"
    for preset in presets:
        unit = _unit(preset)
        table.add_row(
            preset,
            str(unit.a),
            str(unit.block),
            "-" if unit.adder in UNCUT else str(unit.fraction_bits),
            str(unit.sum),
            unit.sum_rounding,
            Accumulator.named()[preset]["evidence"],
        )
    return table


def _sources(presets: list[str]) -> list[str]:
    """Returns the lines below the table: the units' sources, and properties without a column."""
    lines = []
    sources = {preset: told["source"] for preset, told in Accumulator.named().items()}
    for source in dict.fromkeys(sources[preset] for preset in presets):
        names = [preset for preset in presets if sources[preset] == source]
        lines.append(f"{', '.join(names)}: {source}.")
    half = [preset for preset in presets if "fp16" in _outputs(preset)]
    if half:
        named = ", ".join(half)
        lines.append(f"With fp16 results ({named}) the sum is fp16, rounded to nearest_even.")
    adders = {preset: _unit(preset).adder for preset in presets}
    for adder in dict.fromkeys(adders.values()):
        names = [name for name, unit_adder in adders.items() if unit_adder == adder != "aligned"]
        if names:
            lines.append(f"{', '.join(names)}: adder {adder}.")
    for preset in presets:
        unit = _unit(preset)
        if unit.promote:
            lines.append(f"{preset} adds its sum to one in fp32 every {unit.promote} products.")
        if unit.scale is not None:
            lines.append(f"{preset} takes {unit.scale} scales of {unit.scale_block} values of k.")
    pairs = " and ".join(preset for preset in presets if _takes_pairs(preset))
    if pairs:
        lines.append(
            f"With fp16 results {pairs} take 16 products at a time, of each 32 k first those with "
            "k mod 4 < 2, and add the sum to one in fp16 every 32."
        )
    return lines


def _takes_pairs(preset: str) -> bool:
    """Returns whether fp16 results are summed in another order of k than fp32 results."""
    if "fp16" not in _outputs(preset):
        return False
    return bool(Accumulator("fp16", scheme=preset).group)
