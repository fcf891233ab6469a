# SPDX-License-Identifier: Apache-2.0
"""The allowed includes and imports, and the greatest length of a file, with checks of both.

Each check takes the root of a tree and returns complaints, one line each. An empty list means that
the tree follows the rule.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

# The packages in rows, from the lowest. A package may use itself and all packages of earlier rows,
# but no other package of its own row. A package is one or more paths, of folders or of files
# without suffix. A file belongs to the package with the longest matching path.
CPP_ORDER = (
    ("cpd/export",),
    ("cpd/spec",),
    ("cpd/numeric",),
    ("cpd/cells",),
    ("cpd/base",),
    (
        "cpd/backend/calls cpd/backend/message_calls cpd/backend/operations"
        " cpd/backend/kernel_table cpd/backend/backend",
    ),
    ("kernels/cpu", "kernels/cuda", "cpd/oracle"),
    ("cpd/backend/roster cpd/backend/explain cpd/backend/blas cpd/backend/bf16_kernels",),
    ("cpd/backend/cpu",),
    ("cpd/backend",),
    ("cpd/ops", "cpd/scale"),
    ("cpd/compress",),
    ("cpd/comm/errors cpd/comm/report cpd/comm/spec cpd/comm/reduction",),
    ("cpd/comm/transport",),
    ("cpd/comm/engine",),
    ("cpd/comm",),
    ("cpd/study",),
    ("cpd/cpd",),
    ("bindings",),
)
PYTHON_ORDER = (
    ("cpd/_core", "cpd/_files", "cpd/_since"),
    ("cpd/_lazy",),
    ("cpd/numeric",),
    ("cpd/ops", "cpd/_picture"),
    ("cpd/_torch", "cpd/compress"),
    ("cpd/comm",),
    ("cpd/nn",),
    ("cpd/parallel",),
    ("cpd/optim",),
    ("cpd/compat", "cpd/hardware"),
    ("cpd/study", "cpd/track"),
    ("cpd",),  # the modules at the root: public names, and how they are loaded
    ("cpd/cli",),
    ("cpd/__main__",),
    ("cpd_lab/picture", "cpd_lab/shares"),
    ("cpd_lab/train",),
    ("cpd_lab/papers",),
    ("cpd_lab/demo",),
    ("cpd_lab/cli",),
    ("cpd_lab",),
)
PYTHON_PACKAGES = ("cpd", "cpd_lab")
COMPILED = "cpd._core"  # the one module that has no source in python/cpd
# The only file of cpd that may name the package cpd_lab: it has the errors for names of version
# 0.7. Otherwise cpd finds cpd_lab by entry points.
NAMES_THE_LAB = "python/cpd/_since.py"

# Headers of other libraries, by pattern: the packages that may include them, and the greatest
# number of files that may include them. None means any number.
FOREIGN = (
    (r"(torch|ATen|c10)/", ("bindings/",), None),
    (r"pybind11/", ("bindings/",), None),
    (r"cuda\w*\.h$", ("kernels/cuda/", "cpd/comm/transport/nccl/"), None),
    (r"mpi\.h$", ("cpd/comm/transport/mpi/",), 1),
    (r"nccl\.h$", ("cpd/comm/transport/nccl/",), 1),
)

# The files of the tree that the C++ oracle (slow reference arithmetic for tests) may include, and
# the files that may include the oracle.
ORACLE = "cpd/oracle/"
ORACLE_MAY_INCLUDE = ("cpd/oracle/", "cpd/spec/", "cpd/base/parallel.h", "cpd/export.h")
ORACLE_IS_FOR = ("cpd/oracle/", "bindings/")

# The folders that may include the kernels' own headers. All other code calls kernels through a
# backend's table of functions.
KERNELS = "kernels/"
KERNELS_ARE_FOR = ("kernels/", "cpd/backend/")

CPP_FOLDERS = ("cpd", "kernels", "bindings")
CPP_SUFFIXES = (".h", ".cpp", ".cu", ".cuh")
SOURCE_FOLDERS = (*CPP_FOLDERS, "python", "tests", "examples", "benchmarks", ".ci", ".dev")
SOURCE_SUFFIXES = (*CPP_SUFFIXES, ".py", ".sh")
LONGEST_FILE = 600
LONGEST_PROSE = 120
MOST_ROOT_MODULES = 16

Order = tuple[tuple[str, ...], ...]
Edges = dict[str, set[str]]


def files(root: Path, folders: tuple[str, ...], suffixes: tuple[str, ...]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(p for p in (root / folder).rglob("*") if p.suffix in suffixes)


# ---- includes ---------------------------------------------------------------------------------


def includes(root: Path, folders: tuple[str, ...] = CPP_FOLDERS) -> tuple[Edges, Edges]:
    """Returns the files that each C++ and CUDA file includes, and headers of other libraries."""
    own: Edges = {}
    foreign: Edges = {}
    for path in files(root, folders, CPP_SUFFIXES):
        name = path.relative_to(root).as_posix()
        own[name], foreign[name] = set(), set()
        for given in re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', path.read_text(), re.M):
            beside, from_root = path.parent / given, root / given
            target = next((p for p in (beside, from_root) if p.is_file()), None)
            if target is None:
                foreign[name].add(given)
            else:
                own[name].add(target.resolve().relative_to(root.resolve()).as_posix())
    return own, foreign


def foreign_includes(root: Path) -> list[str]:
    """Complains about headers of other libraries that a package may not include."""
    _, foreign = includes(root)
    complaints = []
    for pattern, packages, most in FOREIGN:
        users = [n for n, headers in foreign.items() if any(re.match(pattern, h) for h in headers)]
        strangers = [n for n in users if not n.startswith(packages)]
        complaints += [f"{n} includes {pattern}, which {packages} alone may" for n in strangers]
        if most is not None and len(users) > most:
            complaints.append(f"{pattern} is included by {len(users)} files, not {most}: {users}")
    return complaints


def shared_with_the_oracle(root: Path) -> list[str]:
    """Complains about includes by which the oracle and the library would share arithmetic."""
    own, _ = includes(root)
    arrows = [(name, target) for name in sorted(own) for target in sorted(own[name])]
    return [
        f"{name} includes {target}: the oracle and the library share specs alone"
        for name, target in arrows
        if (name.startswith(ORACLE) and not target.startswith(ORACLE_MAY_INCLUDE))
        or (target.startswith(ORACLE) and not name.startswith(ORACLE_IS_FOR))
    ]


def past_the_tables(root: Path) -> list[str]:
    """Complains about files that include kernels' headers instead of calling cpd/backend."""
    own, _ = includes(root)
    return [
        f"{name} includes {target}: kernels are called through cpd/backend"
        for name in sorted(own)
        for target in sorted(own[name])
        if target.startswith(KERNELS) and not name.startswith(KERNELS_ARE_FOR)
    ]


# ---- imports ----------------------------------------------------------------------------------


def imports(root: Path) -> Edges:
    """Returns, for each module of the Python packages, the modules that it imports anywhere."""
    base = root / "python"
    modules = {_module(p.relative_to(base)): p for p in files(base, PYTHON_PACKAGES, (".py",))}
    known = {*modules, COMPILED}
    return {
        name.replace(".", "/"): {
            target.replace(".", "/") for target in _imported(name, path, known)
        }
        for name, path in modules.items()
    }


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, path: Path, modules: set[str]) -> Iterator[str]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py":  # what it loads at first use is for types
        tree.body = [node for node in tree.body if not _is_for_types(node)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name in modules)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                parents = package.split(".")[: 1 - node.level or None]
                source = ".".join([*parents, *filter(None, [source])])
            for alias in node.names:
                whole = f"{source}.{alias.name}"
                if whole in modules or source in modules:
                    yield whole if whole in modules else source


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def names_of_the_lab(root: Path) -> list[str]:
    """Complains about modules of cpd that name the package cpd_lab."""
    return [
        f"{path.relative_to(root)} names cpd_lab, which it finds by entry points"
        for path in files(root / "python", ("cpd",), (".py", ".j2", ".toml"))
        if "cpd_lab" in path.read_text() and path != root / NAMES_THE_LAB
    ]


def root_modules(root: Path) -> list[str]:
    """Complains if the root of python/cpd has more modules than allowed."""
    found = sorted(p.name for p in (root / "python/cpd").glob("*.py"))
    if len(found) <= MOST_ROOT_MODULES:
        return []
    return [f"python/cpd has {len(found)} modules, not {MOST_ROOT_MODULES}: {', '.join(found)}"]


# ---- the order --------------------------------------------------------------------------------


def _place(name: str, order: Order) -> tuple[int, str] | None:
    """Returns the package of a file as (index of its row in `order`, package); None if the file
    belongs to no package."""
    best, place = -1, None
    for row, packages in enumerate(order):
        for package in packages:
            for path in package.split():
                fits = name == path or name.startswith((f"{path}/", f"{path}."))
                if fits and len(path) > best:
                    best, place = len(path), (row, package)
    return place


def against_the_order(edges: Edges, order: Order) -> list[str]:
    """Complains about files in no package, and about uses of another package that is not in an
    earlier row of `order`."""
    complaints = []
    for name, targets in sorted(edges.items()):
        here = _place(name, order)
        if here is None:
            complaints.append(f"{name} is in no package of the order")
            continue
        for target in sorted(targets):
            there = _place(target, order)
            if there is not None and there != here and there[0] >= here[0]:
                complaints.append(f"{name} → {target}: {here[1]} may not see {there[1]}")
    return complaints


def circles(edges: Edges) -> list[str]:
    """Complains about each cycle of includes or imports, once."""
    complaints = []
    state: dict[str, bool] = {}  # False while its arrows are followed

    def follow(name: str, way: list[str]) -> None:
        state[name] = False
        for target in sorted(edges.get(name, ())):
            if target not in state:
                follow(target, [*way, target])
            elif not state[target] and target != name:
                complaints.append(" → ".join([*way[way.index(target) :], target]))
        state[name] = True

    for name in sorted(edges):
        if name not in state:
            follow(name, [name])
    return complaints


def between_folders(edges: Edges, order: Order) -> Edges:
    """Returns the includes and imports between folders of one package.

    Uses between packages are left out, because the order already restricts them.
    """
    result: Edges = {}
    for name, targets in edges.items():
        here = _place(name, order)
        inside = [target for target in targets if _place(target, order) == here]
        result.setdefault(_folder(name), set()).update(map(_folder, inside))
    return result


def _folder(name: str) -> str:
    return name.rpartition("/")[0]


# ---- lengths ----------------------------------------------------------------------------------


def long_files(root: Path) -> list[str]:
    """Complains about sources of more than LONGEST_FILE lines."""
    sources = [
        *files(root, SOURCE_FOLDERS, SOURCE_SUFFIXES),
        *(p for p in [root / "dev"] if p.exists()),
    ]
    lengths = {p.relative_to(root).as_posix(): len(p.read_text().splitlines()) for p in sources}
    return [
        f"{n} has {length} lines, not {LONGEST_FILE}"
        for n, length in lengths.items()
        if length > LONGEST_FILE
    ]


def long_prose(root: Path) -> list[str]:
    """Complains about Markdown lines beyond LONGEST_PROSE characters, except tables and code."""
    complaints = []
    for path in [*sorted(root.glob("*.md")), *files(root, SOURCE_FOLDERS, (".md",))]:
        code = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if line.lstrip().startswith("```"):
                code = not code
            if len(line) > LONGEST_PROSE and not code and not line.startswith("|"):
                complaints.append(f"{path.relative_to(root)}:{number} has {len(line)} characters")
    return complaints


def missing_paths(root: Path) -> list[str]:
    """Complains about paths in CONTRIBUTING.md that do not exist."""
    text = (root / "CONTRIBUTING.md").read_text()
    named = re.findall(rf"`((?:{'|'.join(SOURCE_FOLDERS)})/[\w/.]+)`", text)
    return [f"CONTRIBUTING.md names {path}" for path in named if not (root / path).exists()]


SIZES = (names_of_the_lab, root_modules, long_files, long_prose, missing_paths)
"""Checks of single files: names of the package cpd_lab, the number of modules in python/cpd,
lengths of files and lines, and paths in CONTRIBUTING.md."""


def complaints(root: Path) -> list[str]:
    """Returns the complaints of all checks that read only the sources of the tree."""
    own, _ = includes(root)
    found = against_the_order(own, CPP_ORDER) + against_the_order(imports(root), PYTHON_ORDER)
    found += circles(own) + circles(between_folders(own, CPP_ORDER)) + circles(imports(root))
    found += foreign_includes(root) + shared_with_the_oracle(root) + past_the_tables(root)
    return found + [one for check in SIZES for one in check(root)]


if __name__ == "__main__":
    sys.exit("\n".join(complaints(Path.cwd())) or None)
