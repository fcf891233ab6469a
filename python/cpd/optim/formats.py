# SPDX-License-Identifier: Apache-2.0
"""`Formats`: the number formats of an optimizer's weights, state and gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch

from cpd import _core
from cpd._torch.arguments import name_of
from cpd.numeric.cast import Cast, CastLike, as_cast, format_of
from cpd.numeric.names import checked_name
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import shown
from cpd.ops.arguments import check_storage

UPDATES = ("nearest_even", "stochastic", "kahan")
MOMENTA = {"momentum_buffer", "exp_avg", "grad_avg"}
SECOND_MOMENTS = {
    "exp_avg_sq",
    "max_exp_avg_sq",
    "square_avg",
    "sum",
    "acc_delta",
    "exp_inf",
    "variance",
    "row_var",
    "col_var",
}
"""Names of the state tensors in which torch's optimizers store moments of a parameter's gradient.

`MOMENTA` has the names of first moments, `SECOND_MOMENTS` the names of second moments.
"""
MASTER, COMPENSATION = "master", "compensation"
"""Names of the state tensors that `LowPrecision` adds to the inner optimizer's state."""


class Formats(NamedTuple):
    """The number format of each part of an optimizer; None: that part is not rounded.

    `kahan` is True if weights are updated with Kahan's compensation.
    """

    weight: Cast | None
    kahan: bool
    master: Cast | None
    momentum: Cast | None
    second_moment: Cast | None
    gradient: Cast | None

    @classmethod
    def of(
        cls,
        weight: CastLike | None,
        update: str | None,
        master: CastLike | None,
        momentum: CastLike | None,
        second_moment: CastLike | None,
        gradient: CastLike | None,
    ) -> Formats:
        """Reads the arguments of `LowPrecision`. Raises ValueError if they exclude each other."""
        if update is not None:
            checked_name("update", update, UPDATES)
        spec = storage_spec("weight", _rounding(weight, update))
        copy = storage_spec("master", master)
        kahan = update == "kahan"
        if spec is None:
            if update is not None or copy is not None:
                raise ValueError("update= and master= need a weight format, got weight=None")
        elif update in ("nearest_even", "stochastic") and spec.rounding != update:
            raise ValueError(f"update={shown(update)} contradicts weight={shown(str(spec))}")
        elif kahan and (isinstance(spec.format, Scaled) or spec.rounding == "stochastic"):
            raise ValueError(
                "update='kahan' needs a weight format without scales and without stochastic "
                f"rounding, got weight={str(spec)!r}"
            )
        elif kahan and copy is not None:
            raise ValueError("update='kahan' and master= exclude each other: give one of them")
        return cls(
            spec,
            kahan,
            copy,
            storage_spec("momentum", momentum),
            storage_spec("second_moment", second_moment),
            storage_spec("gradient", gradient),
        )

    def of_state(self, name: str) -> Cast | None:
        """Returns the format of the state tensor `name`; None if that tensor is not rounded."""
        if name in MOMENTA:
            return self.momentum
        return self.second_moment if name in SECOND_MOMENTS else None

    def kept(self) -> tuple[str, ...]:
        """Returns the names of the state tensors that `LowPrecision` adds for each parameter."""
        return (COMPENSATION,) if self.kahan else (MASTER,) if self.master is not None else ()

    def check_storage(self, dtype: torch.dtype) -> None:
        """Raises ValueError if `dtype` cannot represent every value of the weights' format."""
        f = format_of(self.weight)
        if f is not None:
            check_storage(name_of(dtype), f.name)

    def to_nearest(self) -> Cast | None:
        """Returns the weights' format, with stochastic rounding replaced by nearest-even."""
        if self.weight is None or self.weight.rounding != "stochastic":
            return self.weight
        words = self.weight.text.split()
        return as_cast(" ".join(word for word in words if not word.startswith(_RANDOM)))

    def __str__(self) -> str:
        parts = [f"{k}={str(v)!r}" for k, v in self._asdict().items() if k != "kahan" and v]
        if self.kahan:
            parts.insert(1, "update='kahan'")
        return ", ".join(parts)


_RANDOM = ("rounding=stochastic", "random_bits=", "variant=")
"""The first characters of the words in a cast's text that define stochastic rounding."""


def _rounding(weight: CastLike | None, update: str | None) -> CastLike | None:
    """Returns the weights' format, with stochastic rounding if `update` is `stochastic`.

    A format that names another rounding itself is returned unchanged; `Formats.of` rejects it.
    """
    if weight is None or update != "stochastic":
        return weight
    words = weight.split() if isinstance(weight, str) else ["rounding="]
    if not any(word.startswith("rounding=") or word in _core.ROUNDINGS for word in words):
        return f"{weight} rounding=stochastic"  # which has random_bits= and variant=
    spec = as_cast(weight)
    if spec.rounding == "nearest_even":
        return as_cast(f"{spec.text} rounding=stochastic")
    return spec


def storage_spec(name: str, f: CastLike | None) -> Cast | None:
    """Returns the format `f` of an optimizer's weights, state or gradients as a `Cast`.

    `name` is the argument's name for error messages. Raises ValueError for a cast with
    the keys `history` (delayed scaling) or `factor`.
    """
    if f is None:
        return None
    try:
        spec = as_cast(f)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{name}: {error}") from None
    if spec.history or spec.factor != 1:
        raise ValueError(f"{name} must be a cast without history and factor, got {spec}")
    return spec
