# SPDX-License-Identifier: Apache-2.0
"""Training over several nodes: hooks for DDP and FSDP2, virtual nodes, DiLoCo workers."""
