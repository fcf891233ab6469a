# SPDX-License-Identifier: Apache-2.0
"""Modules emulated in place by `cpd.convert`.

`emulations.py` has an `Emulation` for each kind of module. `classes.emulated` makes from it and
from the module's own class a subclass. Its forward is torch's where the layer is off, else the
emulation's. `modes.py` has the modes in which a module's own forward runs, `state.py` the attribute
`cpd` of an emulated module.
"""

from cpd._since import keep_modules

keep_modules("cpd.nn.converted")
