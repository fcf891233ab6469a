# SPDX-License-Identifier: Apache-2.0
"""What numbers exist and how sums are kept: formats, options, accumulators."""
