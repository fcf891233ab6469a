# SPDX-License-Identifier: Apache-2.0
"""Number formats, scaled formats, casts and accumulators."""
