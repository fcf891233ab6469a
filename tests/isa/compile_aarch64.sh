#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests that a scalar kernel and all NEON kernels compile for aarch64, and that fixed.cpp for NEON contains fused
# multiply-adds of four lanes. (The preset `aarch64` compiles all scalar kernels.)
# Usage: compile_aarch64.sh SOURCE_ROOT
set -euo pipefail
compiler=aarch64-linux-gnu-g++
if ! command -v "$compiler" >/dev/null; then
  echo "[  SKIPPED ] isa.aarch64: no $compiler (Debian: g++-aarch64-linux-gnu)"
  exit 77
fi
# kernel ISA ARGS…: compiles a kernel for ISA.
kernel() {
  "$compiler" -std=c++20 -Wall -Wextra -Wno-psabi -Werror -ffp-contract=off -DCPD_ISA="$1" -I "$root" "${@:2}"
}
readonly root=$1
readonly neon=(-march=armv8-a+crc -DCPD_NEON)
kernel scalar -fsyntax-only "$root/kernels/cpu/levels.cpp"
echo "ok: scalar kernels compile for aarch64"
# Most kernels include table.h, so it is parsed once.
common=$(mktemp -d)
trap 'rm -rf "$common"' EXIT
echo '#include "kernels/cpu/table.h"' >"$common/common.h"
kernel neon "${neon[@]}" -x c++-header -o "$common/common.h.gch" "$common/common.h"
kernel neon "${neon[@]}" -include "$common/common.h" -fsyntax-only "$root"/kernels/cpu/*.cpp
count=$(kernel neon -O3 "${neon[@]}" -S -o - "$root/kernels/cpu/fixed.cpp" | grep -cE 'fmla\s+v[0-9]+\.4s') ||
  { echo "FAILED: kernels/cpu/fixed.cpp has no fmla of four lanes" && exit 1; }
echo "ok: kernels/cpu compiles for neon; fixed.cpp holds $count times fmla of four lanes"
