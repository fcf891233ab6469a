# SPDX-License-Identifier: Apache-2.0
"""Finds the rule by which a function, a GPU's kernel or a simulated circuit adds products."""
