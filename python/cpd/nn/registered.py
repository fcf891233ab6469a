# SPDX-License-Identifier: Apache-2.0
"""`register`: makes `cpd.convert` emulate modules of a class that is not torch's."""

from __future__ import annotations

import functools
import inspect
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from cpd.nn.converted.emulations import EMULATIONS, TORCHS, Emulation
from cpd.numeric.checked import checked
from cpd.numeric.shown import kind_of, shown

_WAYS = {
    "products": EMULATIONS["Forward"],
    "attention": EMULATIONS["Attention"],
    "norm": EMULATIONS["OwnNorm"],
    "residual": EMULATIONS["Residual"],
}
_CLASSES: dict[type[nn.Module], Emulation] = {}


@checked
def register(cls: type[nn.Module], how: str | type[nn.Module]) -> None:
    """Makes `cpd.convert` emulate modules of a user-defined class.

    Subclasses that do not override the forward are emulated too. Submodules that are converted
    follow their own recipes. A class may be registered again only with the same `how`.

    Args:
        cls: a class of modules.
        how: how the class's forward is emulated:

            - "products": the recipe computes torch's products, convolutions, attention (by the
              recipe's `attention`) and softmax that the forward calls, as in `cpd.autocast`; each
              call has its own position in the module's random stream;
            - "attention": as "products", but the recipe's `attention` computes products of two
              matrices;
            - "residual": additions of two tensors of equal shape in the forward itself, not in
              submodules, are rounded to the recipe's `residual`;
            - "norm": the module's result and the gradient of the result are rounded to the recipe's
              `norm`;
            - a class of torch that `convert` supports: the module is computed like that class, from
              the attributes of the same names.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an unknown `how`, for torch's own classes, and for a class that is
            registered with another `how`.

    >>> from torch import nn
    >>> class Scores(nn.Module):
    ...     def forward(self, a, b):
    ...         return a @ b.mT
    >>> register(Scores, "products")
    """
    if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
        raise TypeError(f"cls must be a class of modules, got {kind_of(cls)}")
    emulation = TORCHS.get(how) if isinstance(how, type) else _WAYS.get(how)
    if emulation is None:
        raise ValueError(
            f"how must be one of {', '.join(map(repr, _WAYS))}, or a class of torch that "
            f"cpd.convert knows, got {shown(how)}"
        )
    if cls.__module__.startswith("torch.nn."):
        raise ValueError(f"{cls.__name__} is torch's own: register classes of your own")
    if _CLASSES.setdefault(cls, emulation) is not emulation:
        raise ValueError(f"{cls.__name__} is registered already, in another way")
    _emulation_of.cache_clear()


_ATTENTION = {
    *("ALL_ATTENTION_FUNCTIONS", "eager_attention_forward", "scaled_dot_product_attention"),
    *("softmax", "matmul", "bmm", "baddbmm", "einsum"),
}
_ADDED = {"residual", "input_tensor"}
_OF_PACKAGES: tuple[tuple[str, str, set[str]], ...] = (
    ("transformers.pytorch_utils.Conv1D", "Conv1D", set()),
    ("transformers.models.*Experts", "Experts", set()),
    ("transformers.models.*Router", "Forward", set()),
    ("transformers.models.*.MambaMixer", "Mamba", set()),
    ("transformers.models.*Mixer", "Mixer", set()),
    ("transformers.models.*DeltaNet", "Mixer", set()),
    ("transformers.models.falcon.*.FalconLinear", "Forward", set()),
    ("transformers.models.*Li[gn]*Attention", "Forward", set()),  # lightning, linear
    ("transformers.models.*Norm", "OwnNorm", set()),
    ("transformers.models.*Attention", "Attention", _ATTENTION),
    ("transformers.models.*.GPTNeoXLayer", "Residual", set()),
    ("transformers.models.t5.*.T5Layer*", "Residual", set()),
    ("transformers.models.*", "Residual", _ADDED),
    ("timm.layers.std_conv.*", "Forward", set()),
    ("timm.layers.norm*.*", "OwnNorm", set()),
    ("timm.*Attention", "Attention", _ATTENTION),
    ("timm.*Block", "Residual", set()),
    ("timm.*.Bottleneck", "Residual", set()),
)
"""The emulations of classes of transformers and timm; the first row that matches a class decides.

A row has a pattern, the name of the emulation, and a set of names of variables and functions. A row
matches a class if the pattern matches the class's qualified name, and the class's forward uses one
of the names; an empty set allows every forward. The names distinguish attention from its wrappers,
and find residual additions by the name of the added variable.
"""


def emulation_of(cls: type[nn.Module]) -> Emulation | None:
    """Returns the emulation of a class of modules; None for an unknown class."""
    return _emulation_of(cls)  # type: ignore[arg-type]


@functools.cache
def _emulation_of(cls: Any) -> Emulation | None:
    for base in cls.__mro__:
        if base in _CLASSES:
            return _CLASSES[base] if cls.forward is base.forward else None
        if base in TORCHS:
            return TORCHS[base]
        emulation = _of_packages(base)
        if emulation is not None:
            return emulation
    return None


def torchs_base(cls: type[nn.Module]) -> type[nn.Module] | None:
    """Returns the torch class that modules of class `cls` are emulated as.

    Returns None if their own forward is emulated, or if they are not emulated.
    """
    base = next((base for base in cls.__mro__ if base in TORCHS), None)
    return None if base is None or TORCHS[base] is not emulation_of(cls) else base


def _of_packages(cls: type) -> Emulation | None:
    name = f"{cls.__module__}.{cls.__qualname__}"
    for pattern, emulation, names in _OF_PACKAGES:
        if fnmatchcase(name, pattern) and (not names or _has_one(cls, names)):
            return EMULATIONS[emulation]
    return None


def _has_one(cls: Any, names: set[str]) -> bool:
    """Returns True if the class's forward uses a variable, function or attribute of `names`."""
    code = getattr(inspect.unwrap(cls.forward), "__code__", None)
    return code is not None and not names.isdisjoint(code.co_names + code.co_varnames)
