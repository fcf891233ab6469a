# SPDX-License-Identifier: Apache-2.0
"""The operations on torch tensors. Importing a module of this package imports torch."""

# This import gives derivatives to all operators, whichever module of the package is imported first.
from cpd._torch import operators as operators
