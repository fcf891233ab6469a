# SPDX-License-Identifier: Apache-2.0
"""The laboratory's commands, which `cpd` finds by the entry points of pyproject.toml."""
