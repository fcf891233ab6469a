# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The part of ./dev that installs missing system packages, and Python packages into build/venv.

readonly kVenv=build/venv
readonly kLock=requirements.lock
readonly kBuildPackages=(g++ cmake ninja-build git python3 python3-dev python3-venv)
readonly kOptionalBuildPackages=(libopenblas-dev libopenmpi-dev openmpi-bin iproute2)
readonly kTestPackages=(binutils libgtest-dev libmpfr-dev librandom123-dev)
readonly kOptionalTestPackages=(g++-aarch64-linux-gnu qemu-user clang libclang-rt-dev verilator iverilog yosys make)

offline() { [[ ${CPD_OFFLINE:-0} == 1 ]]; }

# ---- what the system must have ----------------------------------------------------------------

missing_packages() {
  local package
  for package in "$@"; do
    dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^.i' || echo "$package"
  done
}

apt_get() {
  local sudo=()
  if [[ $(id -u) != 0 ]]; then
    command -v sudo >/dev/null || die "packages are missing ($*) and there is neither root nor sudo"
    sudo=(sudo)
  fi
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0 "$@"
}

# system_packages REQUIRED|OPTIONAL PACKAGE...: installs the missing packages with apt-get. If that fails, REQUIRED ends
# the program and OPTIONAL warns. Does nothing offline or without apt-get.
system_packages() {
  local need=$1
  shift
  if offline || ! command -v apt-get >/dev/null; then
    return 0 # CMake reports missing libraries later
  fi
  local missing
  mapfile -t missing < <(missing_packages "$@")
  ((${#missing[@]})) || return 0
  say "installing system packages: ${missing[*]}"
  local log=build/apt.log
  mkdir -p build
  if ! { apt_get update && apt_get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    [[ $need == OPTIONAL ]] || { tail -n 20 "$log" >&2; die "apt-get failed (see $log)"; }
    if ((${#missing[@]} > 1)); then # try the packages one by one: some may be available
      local package
      for package in "${missing[@]}"; do system_packages OPTIONAL "$package"; done
      return
    fi
    warn "could not install ${missing[*]}; parts and tests that need them are skipped (see $log)"
  fi
}

# ---- the Python environment -------------------------------------------------------------------

usable_python() {
  "$1" - 2>/dev/null <<'PY'
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
sys.exit(not (sys.version_info >= (3, 11) and os.path.exists(header)))
PY
}

base_python() {
  local candidate
  for candidate in python3 /usr/bin/python3 python3.11 python3.12 python3.13; do
    if command -v "$candidate" >/dev/null && usable_python "$candidate"; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  die "no Python >= 3.11 with venv and headers found (Debian: python3-venv, python3-dev)"
}

has_module() { "$1" -c "import $2" 2>/dev/null; }

# stamp_is NAME KEY: true if the step NAME was last completed with KEY (its file in $kStamps holds KEY).
stamp_is() { [[ -f $kStamps/$1 && $(<"$kStamps/$1") == "$2" ]]; }
stamp() {
  mkdir -p "$kStamps"
  printf '%s' "$2" >"$kStamps/$1"
}

# group_hash GROUP...: prints a hash of the dependency groups' pins, the lock file and the interpreter's version.
group_hash() {
  "$kVenv/bin/python" - "$kLock" "$@" <<'PY'
import hashlib, json, pathlib, sys, tomllib
lock, *names = sys.argv[1:]
groups = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["dependency-groups"]
pins = {name: groups[name] for name in names}
key = [sys.version, pins, pathlib.Path(lock).read_text()]
print(hashlib.sha256(json.dumps(key).encode()).hexdigest())
PY
}

pip() { "$kVenv/bin/python" -m pip --quiet --quiet --disable-pip-version-check "$@"; }

uv() { VIRTUAL_ENV=$PWD/$kVenv "$kVenv/bin/uv" --quiet --no-config "$@"; }

# True if uv can replace pip. uv does not read pip's settings, so pip is used if its settings name another index.
has_uv() { [[ -x $kVenv/bin/uv ]] && ! pip config list | grep -q '[.]index-url='; }

# install_group NAME: installs a dependency group of pyproject.toml, with the lock file's versions and hashes.
install_group() {
  local what=(--group "$1" --constraint "$kLock")
  if has_uv && uv pip install "${what[@]}"; then return; fi
  pip install "${what[@]}"
}

# python_group NAME: installs a dependency group of pyproject.toml, unless the same pins were installed before.
python_group() {
  local key
  key=$(group_hash "$1")
  stamp_is "pip-$1" "$key" && return
  if offline; then
    say "offline: the packages of group '$1' are used as they are"
  else
    say "installing the Python packages of group '$1' (pyproject.toml)"
    install_group "$1"
  fi
  stamp "pip-$1" "$key"
}

environment() {
  if [[ -x $kVenv/bin/python ]] && ! "$kVenv/bin/python" -c 'pass' 2>/dev/null; then
    say "the base interpreter of $kVenv no longer exists: making $kVenv again"
    rm -rf "$kVenv" "$kStamps"
  fi
  if ! stamp_is venv 1; then
    local base options=()
    base=$(base_python)
    if offline || has_module "$base" torch; then
      options=(--system-site-packages)
      say "making $kVenv over $base, with its packages"
    else
      say "making $kVenv over $base"
    fi
    rm -rf "$kVenv" "$kStamps"
    mkdir -p build
    "$base" -m venv "${options[@]}" "$kVenv"
    if ! offline; then
      pip install pip==26.3
      pip install uv==0.13.9 || warn "uv could not be installed: pip installs the packages"
    fi
    stamp venv 1
  fi
  has_module_spec torch || torch_group
  python_group env
}

# Installs torch. pip does it, because pip's settings may name a folder or an index of wheels. torch is not in the lock
# file, because each index has its own builds of torch with their own hashes.
torch_group() {
  if ! offline; then
    say "installing the Python packages of group 'torch' (pyproject.toml)"
    pip install --group torch
  fi
}

# Installs NCCL's header and library, which the transport between GPUs is built with. Does so only if nvcc is there and
# neither the CUDA toolkit nor a Python package has NCCL. (A torch with CUDA brings such a package.)
nccl_group() {
  local key
  key=$(group_hash nccl)
  if stamp_is pip-nccl "$key" || offline || ! command -v "${CUDACXX:-nvcc}" >/dev/null; then return; fi
  if ! has_nccl; then
    say "installing the Python packages of group 'nccl' (pyproject.toml)"
    if ! pip install --no-deps --group nccl; then
      warn "could not install NCCL's package; libcpd_nccl is not built"
      return
    fi
  fi
  stamp pip-nccl "$key"
}

has_nccl() {
  echo '#include <nccl.h>' | "${CUDACXX:-nvcc}" -x cu -E - >/dev/null 2>&1 || "$kVenv/bin/python" - <<'PY' 2>/dev/null
import pathlib, nvidia, sys
sys.exit(not any((pathlib.Path(p) / "nccl/include/nccl.h").exists() for p in nvidia.__path__))
PY
}

# optional_group NAME: installs packages that tests compare with or run. Tests that need a missing package are skipped.
optional_group() {
  local key=$(group_hash "$1")
  if stamp_is "pip-$1" "$key" || offline; then return; fi
  say "installing the Python packages of group '$1' (pyproject.toml)"
  if pip install --no-deps --group "$1"; then stamp "pip-$1" "$key"; else warn "some packages of group '$1' could not be installed"; fi
}

# has_module_spec NAME: true if the environment has the package NAME. Does not import NAME: importing torch takes
# seconds.
has_module_spec() {
  "$kVenv/bin/python" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"
}

# setup native|whole: installs what a build needs. Only whole needs NCCL, which is for CUDA.
setup() {
  step "system packages" build_packages
  step "Python packages" environment
  if [[ $1 == whole ]]; then step "NCCL's package" nccl_group; fi
}
build_packages() {
  system_packages REQUIRED "${kBuildPackages[@]}"
  system_packages OPTIONAL "${kOptionalBuildPackages[@]}"
}
test_packages() {
  system_packages REQUIRED "${kTestPackages[@]}"
  system_packages OPTIONAL "${kOptionalTestPackages[@]}"
}
