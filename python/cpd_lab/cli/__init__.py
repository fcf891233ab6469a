# SPDX-License-Identifier: Apache-2.0
"""The lab's commands. `cpd` finds the commands by the entry points in pyproject.toml."""
