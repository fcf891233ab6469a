# SPDX-License-Identifier: Apache-2.0
"""Tests that the tree follows the order of `structure`, and that each check can fail.

Invented trees break the rules.
"""

from pathlib import Path

import pytest

import structure

ROOT = Path(__file__).parents[3]


def listed(complaints):
    assert not complaints, "\n".join(["", *complaints])


def test_no_include_goes_up_or_sideways():
    own, _ = structure.includes(ROOT)
    assert sum(map(len, own.values())) > 300  # they were found
    listed(structure.against_the_order(own, structure.CPP_ORDER))


def test_no_circle_of_includes():
    own, _ = structure.includes(ROOT)
    folders = structure.between_folders(own, structure.CPP_ORDER)
    listed(structure.circles(own) + structure.circles(folders))


def test_headers_of_others_stay_in_their_packages():
    _, foreign = structure.includes(ROOT)
    assert {"mpi.h", "nccl.h", "pybind11/pybind11.h"} <= set().union(*foreign.values())
    listed(structure.foreign_includes(ROOT))


def test_the_oracle_shares_no_arithmetic():
    listed(structure.shared_with_the_oracle(ROOT))


def test_kernels_are_called_through_the_tables():
    listed(structure.past_the_tables(ROOT))


def test_no_import_goes_up_or_sideways():
    edges = structure.imports(ROOT)
    assert sum(map(len, edges.values())) > 100
    listed(structure.against_the_order(edges, structure.PYTHON_ORDER))


def test_no_circle_of_imports():
    listed(structure.circles(structure.imports(ROOT)))


@pytest.mark.parametrize("check", structure.SIZES)
def test_sizes_and_names(check):
    listed(check(ROOT))


# ---- the checks themselves --------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path):
    def make(**texts):
        for name, text in texts.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return tmp_path

    return lambda texts: make(**texts)


def cpp(tree, texts):
    return structure.against_the_order(structure.includes(tree(texts))[0], structure.CPP_ORDER)


def python(tree, texts):
    files = {f"python/cpd/{name}": text for name, text in texts.items()}
    return structure.against_the_order(structure.imports(tree(files)), structure.PYTHON_ORDER)


@pytest.mark.parametrize(
    ("file", "includes", "complaint"),
    [
        ("cpd/ops/a.h", "cpd/numeric/b.h", None),
        ("cpd/ops/a.cpp", "cpd/ops/b.h", None),
        ("cpd/numeric/a.h", "cpd/ops/b.h", "cpd/numeric may not see cpd/ops"),
        ("cpd/scale/a.h", "cpd/ops/b.h", "cpd/scale may not see cpd/ops"),
        ("kernels/cuda/a.cu", "kernels/cpu/b.h", "kernels/cuda may not see kernels/cpu"),
        ("kernels/cuda/a.cu", "cpd/backend/calls.h", None),
        ("kernels/cuda/a.cu", "cpd/backend/roster.h", "kernels/cuda may not see cpd/backend"),
        ("cpd/comm/transport/mpi/a.h", "cpd/comm/engine/b.h", "cpd/comm/transport may not see"),
        ("cpd/comm/errors.h", "cpd/comm/virtual.h", "reduction may not see cpd/comm"),
        ("cpd/comm/virtual.cpp", "cpd/comm/errors.h", None),
        ("cpd/cpd.h", "cpd/study/b.h", None),
        ("cpd/study/a.h", "cpd/cpd.h", "cpd/study may not see cpd/cpd"),
    ],
)
def test_an_include_against_the_order(tree, file, includes, complaint):
    found = cpp(tree, {file: f'#  include "{includes}"\n', includes: ""})
    assert found == [] if complaint is None else complaint in found[0]


@pytest.mark.parametrize(
    ("file", "includes", "is_shared"),
    [
        ("cpd/oracle/a.h", "cpd/numeric/round/b.h", True),
        ("cpd/ops/a.cpp", "cpd/oracle/b.h", True),
        ("cpd/oracle/a.cpp", "cpd/base/parallel.h", False),
        ("cpd/oracle/a.h", "cpd/spec/b.h", False),
        ("bindings/a.cpp", "cpd/oracle/b.h", False),
    ],
)
def test_an_include_shared_with_the_oracle(tree, file, includes, is_shared):
    root = tree({file: f'#include "{includes}"\n', includes: ""})
    assert len(structure.shared_with_the_oracle(root)) == is_shared


@pytest.mark.parametrize(
    ("file", "is_past"),
    [
        ("cpd/ops/a.cpp", True),
        ("bindings/a.cpp", True),
        ("cpd/backend/a.cpp", False),
        ("kernels/cuda/a.cu", False),
    ],
)
def test_an_include_past_the_tables(tree, file, is_past):
    root = tree({file: '#include "kernels/cuda/b.h"\n', "kernels/cuda/b.h": ""})
    assert len(structure.past_the_tables(root)) == is_past


def test_an_include_beside_the_file(tree):
    own, _ = structure.includes(tree({"bindings/a.cpp": '#include "b.h"\n', "bindings/b.h": ""}))
    assert own["bindings/a.cpp"] == {"bindings/b.h"}


def test_a_folder_without_a_package(tree):
    assert cpp(tree, {"cpd/attic/a.h": ""}) == ["cpd/attic/a.h is in no package of the order"]


def test_circles(tree):
    texts = {
        "cpd/ops/a.h": '#include "cpd/ops/b.h"\n',
        "cpd/ops/b.h": '#include "cpd/ops/c/d.h"\n',
        "cpd/ops/c/d.h": '#include "cpd/ops/e.h"\n',
        "cpd/ops/e.h": "",
    }
    own, _ = structure.includes(tree(texts))
    assert structure.circles(own) == []
    folders = structure.between_folders(own, structure.CPP_ORDER)
    assert structure.circles(folders) == ["cpd/ops → cpd/ops/c → cpd/ops"]
    own, _ = structure.includes(tree({"cpd/ops/e.h": '#include "cpd/ops/a.h"\n'}))
    (circle,) = structure.circles(own)
    assert circle == "cpd/ops/a.h → cpd/ops/b.h → cpd/ops/c/d.h → cpd/ops/e.h → cpd/ops/a.h"


@pytest.mark.parametrize(
    ("file", "header"),
    [
        ("cpd/ops/a.cpp", "torch/csrc/stable/tensor.h"),
        ("kernels/cpu/a.cpp", "pybind11/numpy.h"),
        ("cpd/backend/a.cpp", "cuda_runtime.h"),
        ("cpd/comm/engine/a.cpp", "mpi.h"),
        ("cpd/comm/transport/a.cpp", "nccl.h"),
    ],
)
def test_a_header_of_others(tree, file, header):
    (complaint,) = structure.foreign_includes(tree({file: f"#include <{header}>\n"}))
    assert complaint.startswith(file)


def test_a_second_file_with_mpi(tree):
    folder = "cpd/comm/transport/mpi"
    root = tree({f"{folder}/{name}.cpp": "#include <mpi.h>\n" for name in "ab"})
    (complaint,) = structure.foreign_includes(root)
    assert "2 files" in complaint


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("ops/a.py", "from cpd.numeric import b", None),
        ("ops/a.py", "import cpd.nn.b", "cpd/ops may not see cpd/nn"),
        ("ops/a.py", "def f():\n    from cpd.nn.b import c", "cpd/ops may not see cpd/nn"),
        ("ops/a.py", "if TYPE_CHECKING:\n    from cpd.nn import b", "cpd/ops may not see cpd/nn"),
        ("ops/__init__.py", "if TYPE_CHECKING:\n    from cpd.nn import b", None),
        ("ops/__init__.py", "if x:\n    from cpd.nn import b", "cpd/ops may not see cpd/nn"),
        ("ops/a.py", "from ..nn import b", "cpd/ops may not see cpd/nn"),
        ("ops/a.py", "from . import a", None),
        ("comm/a.py", "from cpd.nn import b", "cpd/comm may not see cpd/nn"),
        ("parallel/a.py", "from cpd.optim import b", "cpd/parallel may not see cpd/optim"),
        ("study/a.py", "from cpd import format", "cpd/study may not see cpd"),
        ("demo/a.py", "import cpd", None),
        ("numeric/a.py", "from cpd import _core", None),
        ("cli/a.py", "import numpy", None),
    ],
)
def test_an_import_against_the_order(tree, file, text, complaint):
    texts = {
        f"{package}/{name}.py": "" for package in ("numeric", "nn", "comm", "optim") for name in "b"
    }
    texts |= {f"{package}/__init__.py": "" for package in ("ops", "numeric", "nn", "comm", "optim")}
    found = python(tree, texts | {"__init__.py": "", file: text})
    assert found == [] if complaint is None else complaint in found[0]


@pytest.mark.parametrize(
    "text",
    [
        "from cpd.nn import b",
        "def f():\n    import cpd.nn.b",
        "if TYPE_CHECKING:\n    from . import b",
    ],
)
def test_a_circle_of_imports(tree, text):
    files = {"__init__.py": "", "a.py": text, "b.py": "from cpd.nn.a import c"}
    root = tree({f"python/cpd/nn/{name}": text for name, text in files.items()})
    assert structure.circles(structure.imports(root)) == ["cpd/nn/a → cpd/nn/b → cpd/nn/a"]


def test_a_module_that_names_the_lab(tree):
    text = 'Later("cpd_lab.train")'
    allowed = {structure.NAMES_THE_LAB: text, "python/cpd_lab/cli/a.py": text}
    assert structure.names_of_the_lab(tree(allowed)) == []
    (told,) = structure.names_of_the_lab(tree({"python/cpd/cli/b.py": text}))
    assert told.startswith("python/cpd/cli/b.py names cpd_lab")


@pytest.mark.parametrize("text", ["import cpd_lab.train", "from cpd_lab.train import a"])
def test_an_arrow_to_the_lab(tree, text):
    files = {"python/cpd/cli/b.py": text, "python/cpd_lab/train/a.py": "import cpd.cli.b"}
    files["python/cpd_lab/train/__init__.py"] = ""
    edges = structure.imports(tree(files))
    (told,) = structure.against_the_order(edges, structure.PYTHON_ORDER)
    assert told.startswith("cpd/cli/b → cpd_lab/train")


def test_a_crowded_root(tree):
    names = {f"python/cpd/m{i}.py": "" for i in range(structure.MOST_ROOT_MODULES)}
    assert structure.root_modules(tree(names)) == []
    assert structure.root_modules(tree({"python/cpd/__init__.py": ""}))


def test_a_long_file(tree):
    lines = "\n" * structure.LONGEST_FILE
    assert structure.long_files(tree({"tests/a/b.cpp": lines, "dev": lines})) == []
    assert len(structure.long_files(tree({"tests/a/b.sh": lines + "\n", "dev": lines + "\n"}))) == 2


def test_a_long_line(tree):
    long = "x" * (structure.LONGEST_PROSE + 1)
    allowed = f"| {long} |\n```\n{long}\n```\n{long[1:]}\n"
    assert structure.long_prose(tree({"README.md": allowed})) == []
    assert structure.long_prose(tree({"cpd/README.md": long})) == [
        "cpd/README.md:1 has 121 characters"
    ]


def test_a_path_that_is_not_there(tree):
    text = "`tests/a.py`, `cpd/b.h`, `tests/<folder>/test_<name>.cpp`"
    root = tree({"CONTRIBUTING.md": text, "tests/a.py": ""})
    assert structure.missing_paths(root) == ["CONTRIBUTING.md names cpd/b.h"]
