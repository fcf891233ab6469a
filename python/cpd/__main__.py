# SPDX-License-Identifier: Apache-2.0
"""`python -m cpd` is the command `cpd`."""

import sys

from cpd.cli import main

if __name__ == "__main__":
    sys.exit(main())
