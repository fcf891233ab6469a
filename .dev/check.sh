# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# The command ./dev check: checks of format, style, types and faults. They change no source file.

# Writes build/tidy/compile_commands.json with one entry for each source of the project, and prints the sources. The
# build compiles each CPU kernel once for every ISA; the entry of the scalar build, which comes first, is used.
tidy_sources() {
  mkdir -p build/tidy
  "$kVenv/bin/python" - <<'PY'
import json, os, pathlib, re

once = {}
for entry in json.loads(pathlib.Path("build/release/compile_commands.json").read_text()):
    files = [entry["file"]]
    if "/Unity/" in files[0]:  # a unity file, which includes several sources
        files = re.findall(r'#include "(.*)"', pathlib.Path(files[0]).read_text())
    for file in files:
        path = os.path.relpath(file)
        if path.startswith(("cpd/", "kernels/cpu/", "bindings/")) and path.endswith(".cpp"):
            once.setdefault(path, entry | {"file": file, "command": entry["command"].replace(entry["file"], file)})
pathlib.Path("build/tidy/compile_commands.json").write_text(json.dumps(list(once.values())))
print("\n".join(once))
PY
}

check_format() {
  local sources failed=0
  mapfile -t sources < <(
    find benchmarks bindings cpd examples kernels tests -type f \
      '(' -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' ')' | sort
  )
  say "clang-format: ${#sources[@]} files"
  "$kVenv/bin/clang-format" --dry-run --Werror "${sources[@]}" || failed=1
  say "ruff format"
  "$kVenv/bin/ruff" format --check . || failed=1
  return "$failed"
}

check_lint() {
  local failed=0
  say ruff
  "$kVenv/bin/ruff" check . || failed=1
  say "pydoclint: the parameters and results that docstrings describe"
  "$kVenv/bin/pydoclint" python/cpd python/cpd_lab || failed=1
  say "wording: American spelling, banned phrases"
  "$kVenv/bin/python" tests/testing/wording.py || failed=1
  say "structure: orders of includes and imports, sizes, widths"
  "$kVenv/bin/python" tests/python/project/structure.py || failed=1
  say "promises: claims, errors and fixed faults, and the tests that read them"
  "$kVenv/bin/python" tests/testing/promises.py || failed=1
  return "$failed"
}

# Copies the type stubs of the compiled module, which the build has made, to the package's sources: mypy reads them
# there.
check_types() {
  local failed=0
  say mypy
  cp "$("$kVenv/bin/python" -c "import sysconfig; print(sysconfig.get_path('platlib'))")/cpd/_core.pyi" python/cpd/ || return 1
  "$kVenv/bin/mypy" || failed=1
  say "mypy: programs of users"
  "$kVenv/bin/python" -m pytest -q -p no:xdist tests/python/project/test_typing.py || failed=1
  return "$failed"
}

check_tidy() {
  local sources
  mapfile -t sources < <(tidy_sources)
  say "clang-tidy: ${#sources[@]} files"
  printf '%s\n' "${sources[@]}" |
    xargs -P "$(jobs)" -n 1 "$kVenv/bin/clang-tidy" -p build/tidy --quiet \
      --extra-arg="-idirafter$(g++ -print-file-name=include)" 2>build/tidy/stderr.log
}

check_apart() { ("check_$1"); } # in a subshell: a check that calls die does not end the later checks

check() {
  local name names=("$@") failed=()
  ((${#names[@]})) || names=(format lint types tidy)
  for name in "${names[@]}"; do
    [[ $(type -t "check_$name") == function ]] || die "check: unknown step '$name' (format, lint, types, tidy)"
  done
  case " ${names[*]} " in
    *" types "* | *" tidy "*) build ;;
    *) setup native ;;
  esac
  step "Python packages" python_group check
  for name in "${names[@]}"; do
    step "check: $name" check_apart "$name" || failed+=("$name")
  done
  ((${#failed[@]} == 0)) || die "check failed: ${failed[*]}"
  say "check passed in $SECONDS s"
}
