# SPDX-License-Identifier: Apache-2.0
"""The demo: a small network trained over nodes, and a report on it."""
