# SPDX-License-Identifier: Apache-2.0
"""Experiments as cells: what each one came to is a file, and many of them run at a time.

See README.md; `cpd.study.sweep` and `cpd study` are made of it.
"""
