# SPDX-License-Identifier: Apache-2.0
"""Modules other than torch's that `cpd.convert` emulates: `register`."""

from __future__ import annotations

import functools
import inspect
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from cpd.nn.converted import MIXINS, own, products
from cpd.numeric.checked import checked
from cpd.numeric.shown import shown

_WAYS: dict[str, type[Any]] = {
    "products": own.EmulatedForward,
    "attention": own.EmulatedAttention,
    "norm": own.EmulatedOwnNorm,
    "residual": own.EmulatedResidual,
}
_CLASSES: dict[type[nn.Module], type[Any]] = {}


@checked
def register(cls: type[nn.Module], how: str | type[nn.Module]) -> None:
    """Makes `cpd.convert` emulate modules of a user-defined class.

    Subclasses that have its forward are emulated too. Modules within it that are converted have
    their own recipes. A class is registered once, or again in the same way.

    Args:
        cls: a class of modules.
        how: the kind of its forward:

            - "products": torch's products, convolutions, attention (by the recipe's `attention`)
              and softmax, called in its forward, are computed as the recipe says, as in
              `cpd.autocast`; each call uses the random bits of its own position in the module's
              stream;
            - "attention": as "products", but products of two matrices are attention's;
            - "residual": additions of two tensors of one shape in its forward, not those of modules
              within it, are rounded to the recipe's `residual`;
            - "norm": its result and the gradient that comes back to it are rounded to the recipe's
              `norm`;
            - a class of torch that `convert` knows: computed as that class is, by its attributes.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for another kind, and for a class that is registered in another way.

    >>> from torch import nn
    >>> class Scores(nn.Module):
    ...     def forward(self, a, b):
    ...         return a @ b.mT
    >>> register(Scores, "products")
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise TypeError(f"cls must be a class of modules, got {shown(cls)}")
    mixin = MIXINS.get(how) if isinstance(how, type) else _WAYS.get(how)
    if mixin is None:
        raise ValueError(
            f"how must be one of {', '.join(map(repr, _WAYS))}, or a class of torch that "
            f"cpd.convert knows, got {shown(how)}"
        )
    if cls.__module__.startswith("torch.nn."):
        raise ValueError(f"{cls.__name__} is torch's own: register classes of your own")
    if _CLASSES.setdefault(cls, mixin) is not mixin:
        raise ValueError(f"{cls.__name__} is registered already, in another way")
    _mixin_of.cache_clear()


_ATTENTION = {
    *("ALL_ATTENTION_FUNCTIONS", "eager_attention_forward", "scaled_dot_product_attention"),
    *("softmax", "matmul", "bmm", "baddbmm", "einsum"),
}
_ADDED = {"residual", "input_tensor"}
_OF_PACKAGES: tuple[tuple[str, type[Any], set[str]], ...] = (
    ("transformers.pytorch_utils.Conv1D", products.EmulatedConv1D, set()),
    ("transformers.models.*Experts", own.EmulatedExperts, set()),
    ("transformers.models.*Router", own.EmulatedForward, set()),
    ("transformers.models.*.MambaMixer", own.EmulatedMamba, set()),
    ("transformers.models.*Mixer", own.EmulatedMixer, set()),
    ("transformers.models.*DeltaNet", own.EmulatedMixer, set()),
    ("transformers.models.falcon.*.FalconLinear", own.EmulatedForward, set()),
    ("transformers.models.*Li[gn]*Attention", own.EmulatedForward, set()),  # lightning, linear
    ("transformers.models.*Norm", own.EmulatedOwnNorm, set()),
    ("transformers.models.*Attention", own.EmulatedAttention, _ATTENTION),
    ("transformers.models.*.GPTNeoXLayer", own.EmulatedResidual, set()),
    ("transformers.models.t5.*.T5Layer*", own.EmulatedResidual, set()),
    ("transformers.models.*", own.EmulatedResidual, _ADDED),
    ("timm.layers.std_conv.*", own.EmulatedForward, set()),
    ("timm.layers.norm*.*", own.EmulatedOwnNorm, set()),
    ("timm.*Attention", own.EmulatedAttention, _ATTENTION),
    ("timm.*Block", own.EmulatedResidual, set()),
    ("timm.*.Bottleneck", own.EmulatedResidual, set()),
)
"""Patterns of qualified names of classes, of which the first that fits decides, and names of which
the forward of such a class must have one, where there are any: it computes attention, and does not
only stand around what does; it has a name for what is added to a module's result."""


def mixin_of(cls: type[nn.Module]) -> type[Any] | None:
    """The mixin by which modules of a class are emulated; None: they are not known."""
    return _mixin_of(cls)  # type: ignore[arg-type]


@functools.cache
def _mixin_of(cls: Any) -> type[Any] | None:
    for base in cls.__mro__:
        if base in _CLASSES:
            return _CLASSES[base] if cls.forward is base.forward else None
        if base in MIXINS:
            return MIXINS[base]
        found = _of_packages(base)
        if found is not None:
            return found
    return None


def is_registered(cls: type[nn.Module]) -> bool:
    """Returns whether modules of a class are emulated by their own forward."""
    return mixin_of(cls) is not None and MIXINS.get(_known_base(cls)) is not mixin_of(cls)


def _known_base(cls: type[nn.Module]) -> Any:
    return next((base for base in cls.__mro__ if base in MIXINS), None)


def _of_packages(cls: type) -> type[Any] | None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    for pattern, mixin, names in _OF_PACKAGES:
        if fnmatchcase(name, pattern) and (not names or _has_one(cls, names)):
            return mixin
    return None


def _has_one(cls: Any, names: set[str]) -> bool:
    """Returns whether the class's own forward has one of those names."""
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    return code is not None and not names.isdisjoint(code.co_names + code.co_varnames)
