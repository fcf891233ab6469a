# SPDX-License-Identifier: Apache-2.0
"""The operations on torch tensors. Importing a module of this package imports torch."""

# Imported here, so that all operators have derivatives, whichever module is imported first.
from cpd._torch import operators as operators
