# SPDX-License-Identifier: Apache-2.0
"""The tables and figures of five papers, measured again: `cpd study`. See README.md."""
