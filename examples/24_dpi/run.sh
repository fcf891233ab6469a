#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the simulation with Verilator, links it with libcpd and runs it. Skips if Verilator is not installed.
# Usage: run.sh [FOLDER_OF_LIBCPD] (default: the folder of the installed Python package cpd)
set -euo pipefail
here=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
rtl=$here/../../tests/rtl
library=${1:-$(python -c 'import pathlib, cpd; print(pathlib.Path(cpd._core.__file__).parent)')}
if ! command -v verilator >/dev/null; then
  echo "skipped: no verilator on this machine"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OBJCACHE=${OBJCACHE-$(command -v ccache || true)}
verilator --binary --timing -Wno-fatal -Wno-PINMISSING --top-module tb --Mdir "$work" \
  -LDFLAGS "-L$library -lcpd -Wl,-rpath,$library" \
  "$here/cpd_dpi.sv" "$here/tb.sv" "$rtl"/*.sv >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/Vtb"
