# SPDX-License-Identifier: Apache-2.0
"""Writes SystemVerilog test benches that compare a module with test vectors."""

from cpd._lazy import attach

attach(__name__)
