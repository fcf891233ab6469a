# SPDX-License-Identifier: Apache-2.0
"""Self-checking SystemVerilog test benches around vectors."""

from cpd._lazy import attach

attach(__name__)
