# SPDX-License-Identifier: Apache-2.0
"""Finds the tests that a change can break, from the includes and imports of all files.

    changed.py REVISION

The change is the difference from the last common commit of HEAD and REVISION, with uncommitted and
new files. A changed file can break every test that depends on it. Dependencies are includes and
imports (tests/python/project/structure.py), and some that these do not show: a header depends on
its source, the roster of kernels on all kernels, a name of the compiled module on the binding that
makes it, and a name of the package on its module.

Prints `everything WHY` if all tests must run. Otherwise prints `program TARGET TEST` for each C++
test, with its build target and its name in ctest, and `python FILE` for each Python test.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/python/project"))

import structure  # noqa: E402

Edges = dict[str, set[str]]

# Files that are loaded or looked up at run time, so no include shows the dependency.
AT_RUN_TIME = {
    "cpd/backend/roster.cpp": "kernels/cpu/*.cpp",
    "cpd/backend/registry.cpp": "kernels/cuda/**/*.cu",
    "cpd/comm/transport/libraries.cpp": "cpd/comm/transport/[mn]*/*.cpp",
}
# Files on which no program depends, and the tests that check them.
ABOUT = (
    (r"benchmarks/.*\.(py|json|md|toml)$", "tests/python/project/test_benchmarks.py"),
    (r"benchmarks/.*\.(py|json)$", "tests/python/project/test_bench_runs.py"),
    (r"examples/.*\.(py|ipynb)$", "tests/python/package/test_examples.py"),
    (r"tests/golden/", "tests/python/package/test_golden.py"),
    (r"python/docs/.*|tests/testing/site_check\.py$", "tests/python/project/test_site.py"),
    (r"python/docs/.*", "tests/python/project/test_docs.py"),
    (r"\.github/workflows/", "tests/python/project/test_site.py"),
    (r".*\.md$", "tests/python/package/test_doctests.py"),
    (
        r".*\.md$|tests/testing/(promises|error_texts|prose)",
        "tests/python/project/test_promises.py",
    ),
    (
        r"(python/[\w/]*|.*README)\.md$|tests/rtl/.*\.toml$",
        "tests/python/project/test_page_claims.py",
    ),
    (r"tests/testing/(reading|prose)\.py$", "tests/python/project/test_reading.py"),
    (r"tests/rtl/", "tests/python/hardware/test_rtl.py"),
    (r"python/.*\.(j2|toml|json|html)$", "tests/python/lab/demo/test_report.py"),
    (r"tests/testing/summary.py$", "tests/python/project/test_summary.py"),
)
BUILD = re.compile(
    r"dev$|\.dev/|\.ci/|(.*/)?CMake|.*\.cmake|(python/)?pyproject\.toml|requirements\.lock|tests/python/conftest"
    r"|python/cpd/__init__\.py|tests/testing/main\.cpp"
)
"""Files that are needed to build or to start every test."""
COMMANDS = "python/cpd/cli/__init__.py"
MOST = 0.8
"""All tests run if a change can break more than MOST of them, a share between 0 and 1."""
ALWAYS = "tests/python/project/test_structure.py"


# ---- what differs -----------------------------------------------------------------------------


def git(*words: str) -> list[str]:
    command = ["git", "-C", str(ROOT), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"changed: {done.stderr.strip()}")
    return done.stdout.splitlines()


def changed_since(revision: str) -> list[str]:
    (base,) = git("merge-base", revision, "HEAD")
    new = git("ls-files", "--others", "--exclude-standard")
    return sorted({*git("diff", "--name-only", "--no-renames", base), *new})


# ---- who leads to whom ------------------------------------------------------------------------


@functools.cache
def cpp_edges() -> Edges:
    edges, _ = structure.includes(ROOT, (*structure.CPP_FOLDERS, "tests"))
    for name in [*edges]:
        for source in _sources_of(name):
            if source in edges:
                edges[name].add(source)
    for name, pattern in AT_RUN_TIME.items():
        edges[name] |= {p.relative_to(ROOT).as_posix() for p in ROOT.glob(pattern)}
    return edges


def _sources_of(header: str) -> Iterator[str]:
    if header.endswith((".h", ".cuh")) and not header.startswith("bindings/"):
        stem = header.rpartition(".")[0]
        yield from (f"{stem}.cpp", f"{stem}.cu")


def core_names() -> dict[str, str]:
    """Returns the source of the binding for each name of the compiled module."""
    pattern = re.compile(r'(?:\bm\.(?:def|attr)\(|class_<[^;{]*?\(m,|enum_<[^;{]*?\(m,)\s*"(\w+)"')
    return {
        name: path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "bindings").glob("*.cpp"))
        if not path.name.startswith("torch_") or path.name == "torch_distributed.cpp"
        for name in pattern.findall(path.read_text())
    }


def public_names() -> dict[str, str]:
    """Returns the module from which the package `cpd` takes each of its names."""
    names: dict[str, str] = {}
    tree = ast.parse((ROOT / "python/cpd/__init__.py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names[alias.asname or alias.name] = whole if _file(whole) else node.module
    return names


@functools.cache
def test_helpers() -> dict[str, str]:
    """Returns the file of each module of the tests. The tests import one another by module name
    only."""
    paths = (ROOT / "tests/python").rglob("*.py")
    return {path.stem: path.relative_to(ROOT).as_posix() for path in paths}


def _file(module: str) -> str | None:
    """Returns the file of a module of the package or of the tests; None if there is none."""
    path = module.replace(".", "/")
    for candidate in (f"python/{path}.py", f"python/{path}/__init__.py"):
        if (ROOT / candidate).is_file():
            return candidate
    return test_helpers().get(module)


@functools.cache
def python_edges() -> Edges:
    core, public = core_names(), public_names()
    torch = {f"bindings/{p.name}" for p in (ROOT / "bindings").glob("torch_[!d]*.cpp")}
    files = (path.relative_to(ROOT).as_posix() for path in ROOT.glob("python/*/cli/*.py"))
    commands = {Path(file).stem: file for file in files}
    edges: Edges = defaultdict(set)
    for folder in ("python", "tests/python", "benchmarks", "examples"):
        for path in (ROOT / folder).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            text = path.read_text()
            edges[name] = set(_uses(name, text, public))
            if name == COMMANDS:  # who runs one names it
                edges[name] -= {*commands.values()}
            elif COMMANDS in edges[name]:
                words = set(re.findall(r"""["'](\w+)["']""", text)) & {*commands}
                edges[name] |= {commands[word] for word in words}
            edges[name] |= {
                core[word] for word in re.findall(r"_core\.(\w+)", text) if word in core
            }
            if "torch.ops.cpd" in text:
                edges[name] |= torch
    return edges


def _uses(name: str, text: str, public: dict[str, str]) -> Iterator[str]:
    """Yields the files that a Python file imports, or names as `cpd.<name>` or
    "module:function"."""
    package = name.removeprefix("python/").removesuffix(".py").replace("/", ".").rpartition(".")[0]
    for node in _run(ast.parse(text)):
        found: Iterable[str] = ()
        if isinstance(node, ast.Import):
            found = (alias.name for alias in node.names if alias.name != "cpd")
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                source = ".".join(filter(None, [package, source]))
            found = _imported(source, [alias.name for alias in node.names], public)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "cpd":
                found = (public.get(node.attr, f"cpd.{node.attr}"),)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = _ran(node.value)
        elif isinstance(node, ast.List | ast.Tuple) and "'-m', 'cpd'" in ast.unparse(node):
            found = ("cpd.cli",)
        yield from (file for file in map(_file, found) if file and file != name)


def _run(tree: ast.AST) -> Iterator[ast.AST]:
    """Yields the nodes of a syntax tree, except branches that only type checkers read."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from _run(node)


def _imported(source: str, names: list[str], public: dict[str, str]) -> Iterator[str]:
    for name in names:
        if source == "cpd":
            yield public.get(name, f"cpd.{name}")
        else:
            yield f"{source}.{name}" if _file(f"{source}.{name}") else source


def _ran(text: str) -> Iterator[str]:
    """Yields the module of a text "module:function", which names a function that ranks run."""
    if re.fullmatch(r"\w+:\w+", text):
        yield text.partition(":")[0]


# ---- what follows -----------------------------------------------------------------------------


def leading_to(changed: Iterable[str], edges: Edges) -> set[str]:
    users: Edges = defaultdict(set)
    for name, targets in edges.items():
        for target in targets:
            users[target].add(name)
    found = set(changed)
    waiting = [*found]
    while waiting:
        fresh = users[waiting.pop()] - found
        found |= fresh
        waiting += fresh
    return found


def tests() -> tuple[list[str], list[str]]:
    """Returns the files of all C++ tests and of all Python tests."""
    cpp = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "tests").rglob("*.cpp"))
    programs = [p for p in cpp if re.search(r"/test_\w+\.cpp$|/comm/(mpi|nccl)/", p)]
    python = sorted(p.relative_to(ROOT).as_posix() for p in ROOT.glob("tests/python/**/test_*.py"))
    return programs, python


def target_of(source: str) -> str:
    """Returns the target of a test's source, as tests/CMakeLists.txt names it."""
    name = re.sub(r"/(test_)?(\w+)\.cpp$", r"/\2", source.removeprefix("tests/"))
    return "test_" + name.replace("/", "_")


def test_of(source: str) -> str:
    """Returns the test's name in ctest. For a program that runs as several processes, returns the
    beginning of the names."""
    return target_of(source).removeprefix("test_").replace("_", ".", source.count("/") - 1)


def plan(changed: list[str]) -> list[str]:
    """Returns the lines to print."""
    edges = {**cpp_edges(), **python_edges()}
    reached = leading_to(changed, edges)
    reached |= {test for name in changed for pattern, test in ABOUT if re.match(pattern, name)}
    programs, python = tests()
    chosen = [
        *(f"program {target_of(name)} {test_of(name)}" for name in programs if name in reached),
        *(f"python {name}" for name in python if name in reached or name == ALWAYS),
    ]
    share = len(chosen) / (len(programs) + len(python))
    if build := [name for name in changed if BUILD.match(name)]:
        return [f"everything every test is built or started by {build[0]}"]
    if share > MOST:
        return [f"everything {share:.0%} of all tests lead to {', '.join(changed[:3])}"]
    return chosen


if __name__ == "__main__":
    print("\n".join(plan(changed_since(sys.argv[1]))))
