# SPDX-License-Identifier: Apache-2.0
"""Sweeps over formats, accumulators, roundings and scales, on the caller's tensors."""
