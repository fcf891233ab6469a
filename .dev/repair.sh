#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# repair.sh FOLDER WHEEL: adds the software bill of materials (SBOM) to WHEEL. auditwheel then writes it into FOLDER
# under a name with the oldest system that can run it. Libraries that the whole process must share are not packed by
# auditwheel: torch, MPI and OpenMP. CPD_WHEEL in cpd/cmake/CpdOptions.cmake describes the wheel's OpenMP.
set -euo pipefail
python "$(dirname "${BASH_SOURCE[0]}")/sbom.py" "$2"
auditwheel repair --wheel-dir "$1" --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude 'libmpi.so.*' \
  --exclude libgomp.so.1 "$2"
