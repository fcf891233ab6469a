# SPDX-License-Identifier: Apache-2.0
"""Measures the tables and figures of five papers again, for `cpd study`. See README.md."""
