# SPDX-License-Identifier: Apache-2.0
"""Sweeps over formats, accumulators, roundings and scales, on tensors of one's own."""
