# SPDX-License-Identifier: Apache-2.0
"""CPD's laboratory: trains networks over nodes and measures again what papers show.

Commands: `cpd train`, `cpd study`, `cpd demo` and `cpd report`. For programs: `cpd_lab.train`.
"""
