# SPDX-License-Identifier: Apache-2.0
"""The demo: trainings of a small network over emulated nodes, and a report on their results."""
