# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The commands ./dev test and ./dev gpu.

readonly kResults=build/results
# One worker more than there are compile jobs (by default, cores), because some tests wait.
kParallel=(--numprocesses "$(($(jobs) + 1))" --dist worksteal)
readonly kParallel
readonly kTorchTests=(_torch compat nn ops optim parallel track)

# ctest_tree TREE LABELS: runs the tests with one of LABELS (a|b) in build/TREE. Their JUnit file is for the summary.
ctest_tree() {
  local results=$PWD/$kResults/ctest-$1-${2%%|*}.xml
  ctest --test-dir "build/$1" -L "^($2)\$" --no-tests=error --output-on-failure --parallel "$(jobs)" \
    --output-junit "$results" || die "stage failed: C++ tests ($1, $2)"
}

compile_tests() {
  local targets=(cpd_tests)
  ((kAll)) && targets+=(cpd_exhaustive_tests)
  logged build-tests cmake --build build/release --target "${targets[@]}"
}

# cpp_tests LABELS: compiles the C++ tests of the release tree and runs those with one of LABELS.
cpp_tests() {
  step "compile: C++ tests" compile_tests
  step "C++ tests, $1" ctest_tree release "$1"
}

# preset_tests NAME OPTION...: configures (with OPTION...) and builds the CMake preset NAME and runs its quick C++
# tests.
preset_tests() {
  logged "configure-$1" cmake --preset "$1" "${@:2}" -DPython_EXECUTABLE="$PWD/$kVenv/bin/python"
  step "compile: $1" logged "build-$1" cmake --build --preset "$1"
  step "C++ tests under $1" ctest_tree "$1" quick
}

# Runs tests under AddressSanitizer and UndefinedBehaviorSanitizer. Without --all, the programs of the release tree load
# a sanitized library that has the scalar kernels and the kernels of this CPU's widest ISA; only programs that test
# inline code are compiled with the sanitizers. With --all, everything is compiled with them, for every ISA.
sanitized_tests() {
  if ((kAll)); then
    preset_tests asan -DCPD_WIDEST_ISA=OFF -DCPD_TESTED_PROGRAMS=
  else
    preset_tests asan -DCPD_WIDEST_ISA=ON -DCPD_TESTED_PROGRAMS="$PWD/build/release/tests"
  fi
}

aarch64_tests() {
  if type aarch64-linux-gnu-g++ qemu-aarch64 &>/dev/null; then
    preset_tests aarch64
  else
    warn "skipped: C++ tests for aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user)"
  fi
}

can_fuzz() {
  echo 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }' |
    clang++ -x c++ -fsanitize=fuzzer,address,undefined -o build/can_fuzz - 2>/dev/null
}

# fuzz_tests LABELS: builds the fuzz targets (decoders and parsers) and runs those with one of LABELS under libFuzzer.
fuzz_tests() {
  if ! can_fuzz; then
    warn "skipped: decoders under libFuzzer (they need a clang++ that links libFuzzer; Debian: clang, libclang-rt-dev)"
    return
  fi
  logged configure-fuzz cmake --preset fuzz
  step "compile: fuzz" logged build-fuzz cmake --build --preset fuzz
  step "decoders under libFuzzer, $1" ctest_tree fuzz "$1"
}

# python_tests NAME ARGS: runs pytest with ARGS and writes the JUnit file pytest-NAME.xml. Workers share the cores, so
# OpenMP's threads sleep while they wait: with spinning threads, training a small network beside other work took 2.4
# times the processor time.
python_tests() {
  local results=$kResults/pytest-$1.xml
  # The empty PYTHONDONTWRITEBYTECODE lets pytest store the compiled tests for the next run.
  PYTHONDONTWRITEBYTECODE='' OMP_WAIT_POLICY=${OMP_WAIT_POLICY-passive} step "Python tests, $1" "$kVenv/bin/python" -m pytest --junitxml="$results" "${@:2}" ||
    die "stage failed: Python tests"
}

# torch_tests NAME REQUIREMENT: runs the quick Python tests of tensors with another torch version. pip installs that
# torch into build/torch/NAME, which comes before the environment's packages. The folder (5 GB) is deleted after the
# tests.
torch_tests() {
  local folder=$PWD/build/torch/$1
  if offline; then
    warn "skipped: Python tests with the $1 torch (CPD_OFFLINE)"
    return
  fi
  rm -rf "$folder"
  if pip install --target "$folder" "$2"; then
    PYTHONPATH=$folder python_tests "torch-$1" -m 'not exhaustive' "${kParallel[@]}" "${kTorchTests[@]/#/tests/python/}"
  else
    warn "skipped: Python tests with the $1 torch ($2 could not be installed)"
  fi
  rm -rf "$folder"
}

# Prints the oldest torch that pyproject.toml allows, as a requirement such as 'torch>=2.11'.
least_torch() {
  "$kVenv/bin/python" - <<'PY'
import pathlib, tomllib
print(tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["optional-dependencies"]["torch"][0])
PY
}

# gpu_tests_on_cpu NAME ARGS: runs the Python tests of CUDA tensors without a GPU. The CUDA kernels are compiled for the
# CPU (tests/testing/cuda_on_cpu), and torch must be built without CUDA. NAME and ARGS are as for python_tests.
gpu_tests_on_cpu() {
  local folder=$PWD/build/release/cuda_on_cpu
  if [[ ! -e $folder/libtorch_cuda.so ]] || "$kVenv/bin/python" -c 'import sys, torch; sys.exit(torch.version.cuda is None)'; then
    warn "skipped: Python tests of CUDA tensors on the CPU (they need torch without CUDA)"
    return
  fi
  CPD_CUDA_ON_CPU=1 CPD_REQUIRE_GPU=1 LD_LIBRARY_PATH=$folder PYTHONPATH=$PWD/tests/testing/cuda_on_cpu/python \
    python_tests "$@" "${kParallel[@]}"
}

# Prints how many tests ran, which tests were skipped and why, and which were slow.
summary() {
  local options=()
  ((kAll)) || options=(--quick)
  "$kVenv/bin/python" tests/testing/summary.py "${options[@]}" "$kResults"/*.xml build/*/Testing/gtest/*.xml
}

test_() {
  local changed='' only_python=() mutants=''
  kAll=0
  while (($#)); do
    case $1 in
      --mutants)
        mutants=1
        shift
        break
        ;;
      --all) kAll=1 ;;
      --changed) changed=main ;;
      --changed=*) changed=${1#*=} ;;
      *) only_python+=("$1") ;;
    esac
    shift
  done
  step "system packages" test_packages
  if ((kAll)); then optimize_cuda; fi
  build whole
  step "Python packages" optional_group oracles
  step "Python packages" optional_group models
  step "Python packages" optional_group trackers
  step "Python packages" python_group docs
  if [[ -n $mutants ]]; then
    step "mutants" "$kVenv/bin/python" tests/testing/mutants.py --jobs "$(jobs)" "$@"
    return
  fi
  rm -rf "$kResults" build/*/Testing/gtest
  mkdir -p "$kResults"
  if ((${#only_python[@]})); then
    python_tests some "${only_python[@]}"
  elif [[ -n $changed ]]; then
    changed_tests "$changed"
  else
    every_test
  fi
}

every_test() {
  local backends=vectors
  if ((kAll)); then
    export CPD_TEST_EVERYTHING=1
    backends=all
  fi
  CPD_TEST_BACKENDS=$backends cpp_tests 'quick|gpu' # without a GPU, the tests labeled gpu are skipped
  sanitized_tests
  python_tests quick -m 'not exhaustive' "${kParallel[@]}"
  gpu_tests_on_cpu gpu -m 'gpu and not exhaustive'
  if ((kAll)); then
    gpu_tests_on_cpu gpu-exhaustive -m 'gpu and exhaustive'
    torch_tests oldest "$(least_torch | sed 's/>=\(.*\)/==\1.*/')"
    torch_tests newest "$(least_torch)"
    python_tests exhaustive -m exhaustive # one at a time: they measure memory, and some need the whole machine
    cpp_tests exhaustive
    preset_tests tsan
    fuzz_tests exhaustive
    aarch64_tests
  fi
  summary
  [[ -n ${CPD_TIMES:-} ]] || "$kVenv/bin/python" tests/testing/times.py "$kTimes"
  say "all stages passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
}

# changed_tests REVISION: runs only the tests that the changes since REVISION can break.
changed_tests() {
  local kind first rest targets=() names=() files=()
  "$kVenv/bin/python" tests/testing/changed.py "$1" >build/changed.txt
  while read -r kind first rest; do
    case $kind in
      everything)
        say "everything: $first $rest"
        every_test
        return
        ;;
      program) targets+=("$first") names+=("${rest//./\\.}") ;;
      python) files+=("$first") ;;
    esac
  done <build/changed.txt
  say "since $1: ${#targets[@]} C++ programs, ${#files[@]} files of Python tests (build/changed.txt)"
  if ((${#targets[@]})); then
    step "compile: C++ tests" logged build-tests cmake --build build/release --target "${targets[@]}"
    step "C++ tests" changed_programs "${names[@]}"
  fi
  python_tests changed -m 'not exhaustive' "${kParallel[@]}" "${files[@]}"
}
changed_programs() {
  local IFS='|'
  ctest --test-dir build/release -R "^($*)(\\.|\$)" -LE exhaustive --output-on-failure --parallel "$(jobs)" \
    --output-junit "$PWD/$kResults/ctest-changed.xml" || die "stage failed: C++ tests"
}

# gpu [STAGE...]: runs stages on this machine's GPU. gpu --pack [ARCHIVE]: writes an archive for a machine without
# compiler. gpu --from ARCHIVE [STAGE...]: runs stages from such an archive. tests/testing/gpu.py describes the stages.
gpu() {
  case ${1:-} in
    --from)
      (($# > 1)) || die "gpu --from: which archive? (./dev gpu --pack makes out/gpu/cpd.tar.xz)"
      exec "${PYTHON:-python3}" tests/testing/gpu.py from "${@:2}"
      ;;
    --pack)
      gpu_tree
      python_group env
      step "the archive" "$kVenv/bin/python" tests/testing/gpu.py pack "${2:-out/gpu/cpd.tar.xz}"
      ;;
    *)
      gpu_tree
      "$kVenv/bin/python" tests/testing/gpu.py run "$@"
      ;;
  esac
}
gpu_tree() {
  step "system packages" test_packages
  CPD_CUDA=${CPD_CUDA:-ON} build whole
  step "compile: C++ tests" logged build-tests cmake --build build/release --target cpd_gpu_tests
}
