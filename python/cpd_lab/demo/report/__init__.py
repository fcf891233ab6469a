# SPDX-License-Identifier: Apache-2.0
"""The demo: measure, keep the figures as JSON, render them as one HTML file."""
