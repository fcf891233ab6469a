# SPDX-License-Identifier: Apache-2.0
"""The table of the operators torch.ops.cpd.*: `operator` adds a row.

bindings/torch_operators.cpp has the schemas and kernels of most operators. For each operator with
derivatives, it also defines <name>_plain, which has the same kernel but no derivatives. Compiled
programs call <name>_plain, and so does Python if no derivative is needed.

A row gives both operators a fake kernel and a batching rule, and the first operator its
derivatives. The row of an operator that Python defines also has the operator's schema and function.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from cpd._torch.derivatives import Derivative, differentiable, writes_into_out
from cpd._torch.library import ops
from cpd._torch.vmap import Batching, register


class Row(NamedTuple):
    """A row of the table of operators torch.ops.cpd.*: the properties of one operator."""

    fake: Callable[..., Any] | None
    """The operator's fake kernel, for torch's tensors without values. None: only other operators'
    Python functions call the operator, never with tensors without values."""
    derivative: Derivative | None
    batching: Batching | Callable[..., Any] | None
    """The rule by which torch.vmap calls the operator: a `Batching`, or a function for
    torch.library.register_vmap. None: no rule."""
    computes: Callable[..., Any] | None
    """The function of an operator that Python defines; None: C++ defines the operator."""
    has_out: bool
    """True if there is also an operator <name>_out, which writes into `out`."""


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

    `schema` is the operator's name, or the whole schema if Python defines the operator. `tags` are
    torch's tags of an operator that Python defines. The other arguments are the fields of `Row`.
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
