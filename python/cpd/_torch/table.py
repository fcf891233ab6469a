# SPDX-License-Identifier: Apache-2.0
"""The table of the operators torch.ops.cpd.*: `operator` adds a row.

bindings/torch_operators.cpp has the schemas and kernels of most operators, and defines <name>_plain
for each that has derivatives: the same kernel without them, which compiled programs call, and
Python where nothing is to be differentiated. A row gives an operator and its <name>_plain a fake
kernel and a batching rule, and the operator its derivatives. A row of an operator that Python
defines has its schema and its function as well.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cpd._torch.derivatives import Derivative, differentiable, writes_into_out
from cpd._torch.library import ops
from cpd._torch.vmap import Batching, register


class Row(NamedTuple):
    """An operator of the table."""

    fake: Callable[..., Any] | None
    """The operator's fake kernel. None: only operators of Python call the operator, with tensors
    that are not fake."""
    derivative: Derivative | None
    batching: Batching | Callable[..., Any] | None
    """The rule by which torch.vmap calls it, or a rule as torch.library.register_vmap takes it;
    None: no rule."""
    computes: Callable[..., Any] | None
    """The function of an operator that Python defines; None: C++ does."""
    has_out: bool
    """True if there is <name>_out as well, which writes into `out`."""


TABLE: dict[str, Row] = {}

_fragment = torch.library.Library("cpd", "FRAGMENT")


def operator(
    schema: str,
    fake: Callable[..., Any] | None,
    derivative: Derivative | None = None,
    batching: Batching | Callable[..., Any] | None = None,
    computes: Callable[..., Any] | None = None,
    tags: Any = (),
    has_out: bool = False,
) -> None:
    """Adds a row and registers its parts with torch.

    `schema` is the operator's name, or its whole schema if Python defines it, then with torch's
    `tags`. The other arguments are the fields of `Row`.
    """
    name = schema.partition("(")[0]
    TABLE[name] = Row(fake, derivative, batching, computes, has_out)
    if computes is not None:
        _fragment.define(schema, tags=tags)
        _fragment.impl(name, computes, "CompositeExplicitAutograd")
    plain = getattr(ops, f"{name}_plain", None)
    for variant in (name,) if plain is None else (name, f"{name}_plain"):
        if fake is not None:
            torch.library.register_fake(f"cpd::{variant}")(fake)
        if batching is not None:
            register(variant, batching)
    if derivative is not None:
        differentiable(name, derivative, plain, computes)
    if has_out:
        writes_into_out(name)
