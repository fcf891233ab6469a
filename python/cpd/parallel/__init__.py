# SPDX-License-Identifier: Apache-2.0
"""Training over several nodes: hooks of torch's data parallelism, and nodes."""
