# SPDX-License-Identifier: Apache-2.0
"""The classes of modules that `cpd.convert` emulates in place.

`emulations.py` has an `Emulation` for each kind of module. `classes.emulated` makes a subclass of
the module's own class from an `Emulation`. The subclass's forward is the emulation's, or torch's if
the layer is switched off. `modes.py` has the modes in which a module's own forward runs, `state.py`
the attribute `cpd` of an emulated module.
"""

from cpd._since import keep_modules

keep_modules("cpd.nn.converted")
