# SPDX-License-Identifier: Apache-2.0
"""Torch's modules, emulated in place by `cpd.convert`: a mixin for each class of module.

From a mixin and the module's own class, `cpd.nn.converted.classes.emulated` makes a subclass whose
forward is torch's where the layer is off, and the mixin's where it is on. A mixin has

    what        what is emulated, as the report names it: "products", "norm", "attention", …
    inner       names of submodules that it computes itself, without calling them; default: ()
    alone       whether modules within it compute outside of its mode; default: no
    forward     the computation, by the functional forms, with self.cpd, a `State`
    describe    classmethod (state) -> str: how, for the report
    refuses     classmethod (module, state) -> str: why it cannot be emulated, or ""
    histories   classmethod (module) -> (n, m): how many products by the recipe, and by its
                attention, keep scales where these are delayed; none without it

and no state of its own, no `__init__`, no other base than object.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from cpd.nn.converted import attention, embedding, norms, own, products, recurrent

MIXINS: dict[type[nn.Module], type[Any]] = {
    **products.MIXINS,
    **attention.MIXINS,
    **recurrent.MIXINS,
    **norms.MIXINS,
    **embedding.MIXINS,
    **own.MIXINS,
}
"""Class of torch -> mixin. Subclasses that compute as it does are taken too."""
