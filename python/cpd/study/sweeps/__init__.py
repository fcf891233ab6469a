# SPDX-License-Identifier: Apache-2.0
"""`sweep`: measures formats, accumulators, roundings and scales on the caller's tensors."""
