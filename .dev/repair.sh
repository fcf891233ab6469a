#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# repair.sh FOLDER WHEEL: the wheel with its list of materials, named by the oldest system that it runs on. What it must
# share with the process stays outside: torch, MPI, and the OpenMP that it brings (cpd/cmake/CpdOptions.cmake, CPD_WHEEL).
set -euo pipefail
python "$(dirname "${BASH_SOURCE[0]}")/sbom.py" "$2"
auditwheel repair --wheel-dir "$1" --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libmpi.so.*' \
  --exclude libgomp.so.1 "$2"
