#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The scalar kernels are plain C++: they compile for another architecture. Usage: compile_aarch64.sh SOURCE_ROOT
set -euo pipefail
compiler=aarch64-linux-gnu-g++
if ! command -v "$compiler" >/dev/null; then
  echo "[  SKIPPED ] isa.aarch64: no $compiler (Debian: g++-aarch64-linux-gnu)"
  exit 77
fi
for level in -O0 -O3; do
  "$compiler" -std=c++20 "$level" -Wall -Wextra -Wno-psabi -Werror -ffp-contract=off -DCPD_ISA=scalar -I "$1" \
    -fsyntax-only "$1"/kernels/cpu/*.cpp
  echo "ok: kernels/cpu compiles for aarch64 at $level"
done
