# SPDX-License-Identifier: Apache-2.0
"""`Unit`: the module under test of a test bench, with its parameters and ports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cpd.hardware.testbench.ports import Ports
from cpd.hardware.vectors.fields import Field
from cpd.hardware.vectors.systemverilog import check_identifier
from cpd.numeric.accumulator import Accumulator, as_integer, as_unit
from cpd.numeric.checked import check_keys, checked
from cpd.numeric.formats import Format, as_format
from cpd.numeric.shown import shown

ROUNDINGS = (
    "nearest_even",
    "toward_zero",
    "down",
    "up",
    "nearest_away",
    "to_odd",
    "stochastic",
)
"""The roundings that a module's port `rounding` selects by number: 0 is the first of this list.
The first five numbers are RISC-V's."""

ENCODINGS = ("ieee", "fn", "finite")
"""The encodings of formats. A module's parameter ENCODING is an index of this list."""


@dataclass(frozen=True)
class Unit:
    """A module under test.

    Attributes:
        name: the module's name.
        parameters: a dict from each parameter to its value.
        inputs: the fields that drive the module's inputs; the ports have the fields' names.
        outputs: the fields that the module's outputs must equal. Fields with the role `signal` are
            compared only if the field `special` is missing or 0.
        constants: a dict from each constant input to (width in bits, value); default empty.
    """

    name: str
    parameters: Mapping[str, int]
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    constants: Mapping[str, tuple[int, int]] = field(default_factory=dict)


Head = Mapping[str, Any]


@checked
def plain_unit(fields: Sequence[Field], module: str, ports: Ports) -> Unit:
    """Returns the `Unit` of a user's module, which has no parameters.

    Its ports are the inputs and the result of a line, the inner signals in `ports.signals` and, if
    `ports.flags`, the flags. Raises ValueError for unknown signals and fields, and if two ports
    have the same name.
    """
    check_identifier("a module's name", module, ("tb",))
    known = [field.name for field in fields if field.role == "signal"]
    chosen = known if ports.signals == ("all",) else list(ports.signals)
    for name in chosen:
        if name not in known:
            has = f"they are {', '.join(known)}" if known else "these vectors have none"
            raise ValueError(f"no signal {shown(name)}: {has}")
    if chosen and "special" in known and "special" not in chosen:
        chosen.append("special")
    outputs = {"result", *chosen} | ({"flags"} if ports.flags else set())
    used = [field for field in fields if field.role == "input" or field.name in outputs]
    _check_ports(ports, [field.name for field in used])
    return Unit(
        module,
        {},
        tuple(field for field in used if field.role == "input"),
        tuple(field for field in used if field.role != "input"),
    )


def _check_ports(ports: Ports, used: Sequence[str]) -> None:
    """Raises ValueError if `ports` names an unknown field, or if two ports have the same name."""
    for name in ports.names:
        if name not in used:
            raise ValueError(f"no field {shown(name)} to map: the fields are {', '.join(used)}")
    of = {port: name for name, port in ports.controls.items() if port is not None}
    for name in used:
        port = ports.port(name)
        if port in of:
            raise ValueError(
                f"the port {port} has the name of a field: {of[port]} and {name} cannot share it"
            )
        of[port] = name


def formats_of(head: Head, fields: Sequence[Field]) -> dict[str, Format]:
    """Returns the format of each field that has one floating-point number per line."""
    result = head.get("result") or Accumulator(head["accumulator"]).format
    named = {"result": as_format(result)}
    named |= {name: as_format(text) for name, text in zip("abc", head["formats"], strict=False)}
    return {
        field.name: named[field.name]
        for field in fields
        if field.name in named and field.bits == named[field.name].bits and not field.signed
    }


@checked
def unit_of(head: Head, fields: Sequence[Field]) -> Unit:
    """Returns the module in `tests/rtl` that computes the operation of some test vectors.

    Args:
        head: the head of the vectors, `Vectors.head`.
        fields: the fields of a line, `Vectors.fields`.

    Returns:
        The module, its parameters and its ports.

    Raises:
        ValueError: if `tests/rtl` has no module for the operation, a format or the rounding.
        TypeError: for an argument of another type.
    """
    check_keys("head", head, "operation")
    operation = head["operation"]
    if operation not in _UNITS:
        known = ", ".join(_UNITS)
        raise ValueError(
            f"no test bench for {operation!r} without a module's name; there are {known}"
        )
    if head.get("nan_signals", False):
        raise ValueError(
            "the modules of tests/rtl raise NV for signalling NaN alone: with nan_signals give the "
            "name of your module"
        )
    name, parts_of = _UNITS[operation]
    inputs = tuple(field for field in fields if field.role == "input")
    outputs = tuple(field for field in fields if field.role != "input")
    parameters, constants = parts_of(head, {field.name: field.bits for field in inputs})
    return Unit(name, parameters, inputs, outputs, constants)


def format_parameters(given: Format, prefix: str = "") -> dict[str, int]:
    """Returns the parameters EXP, MAN and ENCODING of a format.

    Raises ValueError for a format that the modules in `tests/rtl` do not support: with another
    encoding or bias, without subnormals, unsigned, or without a mantissa.
    """
    plain = given.encoding in ENCODINGS and given.signed and given.subnormals
    if not plain or given.man < 1 or given.exp < 2 or given.bias != 2 ** (given.exp - 1) - 1:
        raise ValueError(
            f"no test bench for the format {given}: it takes signed formats with subnormals, "
            f"exp ≥ 2, man ≥ 1, the default bias and an encoding of {', '.join(ENCODINGS)}"
        )
    encoding = ENCODINGS.index(given.encoding)
    return {f"{prefix}EXP": given.exp, f"{prefix}MAN": given.man, f"{prefix}ENCODING": encoding}


Parts = tuple[dict[str, int], dict[str, tuple[int, int]]]


def _elementwise(head: Head, widths: Mapping[str, int]) -> Parts:
    """Returns the parameters and constant inputs for an element-wise operation."""
    operand, *others = (as_format(name) for name in head["formats"])
    if any(other != operand for other in others):
        raise ValueError("a test bench takes operands of one format")
    result = as_format(head["result"])
    if result.encoding == "finite":
        raise ValueError(f"no test bench for results in {result}, which has no NaN")
    parameters = format_parameters(operand) | format_parameters(result, "OUT_")
    constants = {
        "rounding": (3, ROUNDINGS.index(head["rounding"])),
        "saturate": (1, int(head["overflow"] == "saturate")),
    }
    if head.get("tininess", "after") != "after":
        raise ValueError("a test bench takes tininess after rounding")
    if head["operation"] in ("mul", "cast"):
        parameters["RANDOM"] = widths.get("r", 1)
        if "r" not in widths:
            constants["r"] = (1, 0)
    elif head["rounding"] == "stochastic":
        raise ValueError(f"no test bench for {head['operation']} with stochastic rounding")
    if head.get("variant", "A") != "A":
        raise ValueError("a test bench takes stochastic rounding of variant A")
    return parameters, constants


def _block(head: Head, widths: Mapping[str, int]) -> Parts:
    """Returns the module parameters and the constant input ports for a matrix unit's dot product.

    The dot product has one block: as many products as the unit adds at a time.
    """
    accumulator = Accumulator(head["accumulator"])
    unit = as_unit(accumulator)
    aligned = unit is not None and unit.adder == "aligned" and unit.addend == "aligned"
    if unit is None or not aligned or unit.promote or unit.dot != 1:
        raise ValueError(
            f"no test bench for {accumulator}: it takes units that align products and c"
        )
    if head["length"] != unit.block:
        raise ValueError(f"a test bench takes one block: length {unit.block}, got {head['length']}")
    operand, other, addend = (as_format(name) for name in head["formats"])
    result, sum_format = as_format(accumulator.format), as_format(unit.sum)
    if operand != other or addend != result or sum_format.exp != result.exp:
        raise ValueError("a test bench takes a and b of one format, c of the result's")
    parameters = {"PRODUCTS": unit.block, **format_parameters(operand)}
    parameters |= {"F": unit.fraction_bits, "MIN_EXPONENT": unit.min_exponent}
    if unit.scale is None:
        wide, narrow = format_parameters(result), format_parameters(sum_format)
        parameters |= {"OUT_EXP": wide["EXP"], "OUT_MAN": wide["MAN"], "SUM_MAN": narrow["MAN"]}
    elif unit.scale_block != unit.block or {str(result), str(sum_format)} != {"fp32"}:
        raise ValueError("a test bench takes units with a scale a block, and sums in fp32")
    return parameters, {"rounding": (3, ROUNDINGS.index(unit.sum_rounding))}


def _integer(head: Head, widths: Mapping[str, int]) -> Parts:
    """Returns the module parameters for a dot product of integers; there are no constant inputs."""
    accumulator = Accumulator(head["accumulator"])
    operands = [as_format(name) for name in head["formats"]]
    fixed = as_integer(accumulator)
    whole = [f for f in operands if f.encoding in ("int", "int_full") and f.min_subnormal == 1]
    plain = fixed is not None and fixed.fraction == 0 and accumulator.format.name == "fp32"
    if fixed is None or not plain or len(whole) != 2 or whole[0].bits != whole[1].bits:
        raise ValueError(
            f"no test bench for dot of {', '.join(map(str, operands))} in {accumulator}: it takes "
            "integers of one width, such as int8, in an integer, such as int32"
        )
    parameters = {"PRODUCTS": head["length"], "BITS": whole[0].bits, "WIDTH": fixed.width}
    return parameters | {"SATURATE": int(accumulator.overflow == "saturate")}, {}


_UNITS: dict[str, tuple[str, Callable[[Head, Mapping[str, int]], Parts]]] = {
    "cast": ("fp_cast_sr", _elementwise),
    "add": ("fp_add", _elementwise),
    "mul": ("fp_mul", _elementwise),
    "fma": ("fp_fma", _elementwise),
    "block_fma": ("block_fma", _block),
    "dot": ("int_mac", _integer),
    "mma": ("mx_dot", _block),
}
