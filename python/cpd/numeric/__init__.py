# SPDX-License-Identifier: Apache-2.0
"""Formats, options of roundings, and accumulators of sums."""
