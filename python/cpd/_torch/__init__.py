# SPDX-License-Identifier: Apache-2.0
"""The operations on torch tensors. Importing a module of it imports torch."""

# Whichever module comes first, all operators have their derivatives.
from cpd._torch import operators as operators
