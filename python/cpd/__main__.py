# SPDX-License-Identifier: Apache-2.0
"""Runs the command `cpd` for `python -m cpd`."""

import sys

from cpd.cli import main

if __name__ == "__main__":
    sys.exit(main())
