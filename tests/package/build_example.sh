#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the C++ package to a temporary prefix, then builds and runs an example against it, outside the tree.
# Usage: build_example.sh BUILD_DIR EXAMPLE_DIR [no-torch | CMAKE_ARGUMENT...]
set -euo pipefail
build=$1
example=$2
shift 2
if [[ ${1:-} == no-torch ]]; then
  echo "[  SKIPPED ] package.libtorch: this tree is built without torch"
  exit 77
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
cp -r "$example" "$work/example"
cmake -S "$work/example" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -G Ninja \
  -DCMAKE_BUILD_TYPE=Release "$@"
cmake --build "$work/build"
"$work/build/example"
