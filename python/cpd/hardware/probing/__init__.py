# SPDX-License-Identifier: Apache-2.0
"""Finds how a function, a GPU kernel or a simulated circuit adds products."""
