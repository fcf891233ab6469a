# SPDX-License-Identifier: Apache-2.0
"""The operations on torch tensors. Importing a module of it imports torch."""
