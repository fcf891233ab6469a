# SPDX-License-Identifier: Apache-2.0
"""The stubs of the next API, the package as far as it has it, and the table of what changes."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from pathlib import Path
from typing import Never

import pytest

import api_stub

pytest.importorskip("torch")

README = (api_stub.ROOT / "python/docs/porting.md").read_text()
SURFACE = Path(__file__).with_name("surface.json")
MOST_NAMES = 100
ITEMS = api_stub.items()


@pytest.fixture(scope="module")
def differing() -> set[str]:
    return set(api_stub.differing())


# ---- the stubs -------------------------------------------------------------------------------


def test_the_names_fit_in_a_head() -> None:
    names = api_stub.public_names()
    assert 90 <= len(names) <= MOST_NAMES, len(names)
    last = [name.rpartition(".")[2] for name in names]
    assert len(set(last)) == len(last), "two public names have one last part"


def test_no_name_is_a_module_of_the_stubs() -> None:
    modules = {path.stem for path in api_stub.STUB.glob("*.pyi")}
    assert not modules & {name.rpartition(".")[2] for name in api_stub.public_names()}


def test_every_name_is_documented_in_a_line() -> None:
    kinds = ("class", "function", "method")
    wrong = [
        name
        for name, item in ITEMS.items()
        if item.kind in kinds and not re.match(r"[A-Z][^\n]*\.(\n\n|$)", item.doc)
    ]
    assert not wrong


def test_one_word_has_one_meaning() -> None:
    """The parameters that 0.7 called otherwise."""
    gone = {"f", "acc", "dim", "per_rank", "layers", "per_layer", "watch", "calls", "wire", "layer"}
    found = {
        f"{name}: {parameter}"
        for name, item in ITEMS.items()
        for parameter, *_ in item.parameters or ()
        if parameter in gone and name != "cpd.study.capture"  # whose layers are a model's
    }
    assert not found


def test_specs_have_no_numbers() -> None:
    """A spec says how, a call says which bits."""
    for spec in (
        "Format",
        "Scaled",
        "Accumulator",
        "Cast",
        "Recipe",
        "Codec",
        "Reduce",
        "Schedule",
    ):
        parameters = {name for name, *_ in ITEMS[f"cpd.{spec}()"].parameters or ()}
        assert not parameters & {"seed", "stream", "step"}, spec
        assert (ITEMS[f"cpd.{spec}()"].parameters or ((),))[0][1].startswith("positional"), spec


# ---- the package -----------------------------------------------------------------------------


def test_the_package_has_what_is_not_pending(differing: set[str]) -> None:
    wrong = differing - set(api_stub.pending())
    assert not wrong, f"not as the stub says: {sorted(wrong)}"


def test_the_list_of_what_is_pending_shrinks(differing: set[str]) -> None:
    done = set(api_stub.pending()) - differing
    assert not done, f"agrees, take it from the list (api_stub.py --store): {sorted(done)}"


def test_the_list_is_sorted() -> None:
    names = api_stub.pending()
    assert names == sorted(set(names))
    assert set(names) <= set(ITEMS)


# ---- how they are compared -------------------------------------------------------------------

CODE = '''
def f(a, /, b=1, *args, c, d=(), **rest) -> None:
    """Does it."""

def g(x, y="z") -> None: ...
def _hidden() -> None: ...

class A:
    """An A."""

    x: int
    def __init__(self, x: int = ...) -> None: ...
    @property
    def p(self) -> int: ...
    @classmethod
    def make(cls, y): ...
    def _own(self) -> None: ...

class B(A):
    """A B."""
'''


def test_items_of_a_stub(tmp_path: Path) -> None:
    (tmp_path / "part.pyi").write_text(CODE)
    found = api_stub.items(tmp_path)
    assert [*found] == [
        *("cpd.part.f", "cpd.part.g", "cpd.part.A", "cpd.part.A.x", "cpd.part.A()"),
        *("cpd.part.A.p", "cpd.part.A.make", "cpd.part.B", "cpd.part.B.x", "cpd.part.B()"),
        *("cpd.part.B.p", "cpd.part.B.make"),
    ]
    assert found["cpd.part.f"].parameters == (
        *(("a", "positional only", ""), ("b", "positional", "1"), ("args", "*", "")),
        *(("c", "keyword", ""), ("d", "keyword", "()"), ("rest", "**", "")),
    )
    assert found["cpd.part.A.make"].parameters == (("y", "positional", ""),)
    assert found["cpd.part.A()"].parameters == (("x", "positional", "Ellipsis"),)
    assert (found["cpd.part.A.p"].kind, found["cpd.part.f"].doc) == ("attribute", "Does it.")


def plain(x, y="z"):
    pass


def renamed(x, y="z", *others: Never, **old: Never):
    pass


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("def g(x, y='z') -> None: ...", True),
        ("def g(x, y='w') -> None: ...", False),
        ("def g(x, y) -> None: ...", False),
        ("def g(x, *, y='z') -> None: ...", False),
        ("def g(x, z='z') -> None: ...", False),
        ("def g(x) -> None: ...", False),
        ("def g(x, y=...) -> None: ...", True),
        ("def g(x=..., y='z') -> None: ...", False),
    ],
)
@pytest.mark.parametrize("function", [plain, renamed])
def test_signatures_are_compared(
    code: str, expected: bool, function: object, tmp_path: Path
) -> None:
    (tmp_path / "part.pyi").write_text(textwrap.dedent(code))
    stub = api_stub.items(tmp_path)["cpd.part.g"].parameters
    given = api_stub.signature(function)
    assert stub is not None
    assert given is not None
    assert api_stub.same(stub, given) == expected


def test_names_only_leave_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api_stub, "PENDING", tmp_path / "pending.toml")
    monkeypatch.setattr(api_stub, "differing", lambda: ["cpd.b", "cpd.new"])
    api_stub.store(["cpd.b", "cpd.a"])
    assert api_stub.main([]) == 1
    assert api_stub.main(["--store"]) == 1
    assert api_stub.pending() == ["cpd.b"]
    assert "agrees: cpd.a\ndiffers: cpd.new\n" in capsys.readouterr().out
    monkeypatch.setattr(api_stub, "differing", lambda: ["cpd.b"])
    assert api_stub.main([]) == 0


# ---- the table -------------------------------------------------------------------------------

ROWS = {
    match[1]: (match[2], match[3], match[4])
    for match in re.finditer(r"(?m)^\| `([\w.]+)` \| (\w+) \| (.*) \| (.*) \|$", README)
}


def test_every_name_of_the_package_has_its_row() -> None:
    """Names that have gone since keep their rows."""
    stored = json.loads(SURFACE.read_text())["names"]
    known = {*ROWS, *(name.removeprefix("cpd.") for name in ITEMS)}
    missing = [name for name in stored if name.removeprefix("cpd.") not in known]
    assert not missing


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_true(name: str) -> None:
    what, now, why = ROWS[name]
    if what in ("stays", "changed"):
        assert f"cpd.{name}" in ITEMS
        assert what == "stays" or (now and why)
    elif what == "renamed":
        assert now.strip("`") in ITEMS
        assert f"cpd.{name}" not in ITEMS
    else:
        assert what == "gone"
        assert now
        assert why
        assert f"cpd.{name}" not in ITEMS


def test_a_name_that_stays_has_its_signature(differing: set[str]) -> None:
    stays = {f"cpd.{name}" for name, (what, *_) in ROWS.items() if what == "stays"}
    functions = {name for name in stays if ITEMS[name].kind == "function"}
    assert not functions & differing
    assert inspect.isclass(api_stub.found_in_package("cpd.optim.LARS"))


def test_members_that_are_gone() -> None:
    """The paragraph lists `Class.member`, then further members of the class."""
    text = README.partition("Members that are gone:")[2].partition("\n\n")[0]
    owner, found = "", 0
    for word in re.findall(r"`([\w.]+)`", text):
        cls, _, member = word.rpartition(".")
        owner = cls or owner
        if owner:
            found += 1
            assert not any(name.endswith(f".{owner}.{member}") for name in ITEMS), (owner, member)
    assert found > 30
    assert not [name for name in ITEMS if name.endswith(".parse")]


def test_what_is_still_as_in_0_7() -> None:
    """The table has what is pending, but for attributes, and no more."""
    table = README.partition("### Still as in 0.7")[2]
    still = set(re.findall(r"`([\w.()]+)`", " ".join(first_cells(table))))
    pending = {name for name in api_stub.pending() if ITEMS[name].kind != "attribute"}
    assert {f"cpd.{name}" for name in still} == pending


def test_names_of_cpp() -> None:
    headers = "".join(path.read_text() for path in (api_stub.ROOT / "cpd").rglob("*.h"))
    table = README.partition("### C++")[2].partition("\n### ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines()[4:] if line]
    old, new = ({w for row in rows for w in re.findall(r"`(\w+)", row[i])} for i in (0, 1))
    assert {name for name in old if re.search(rf"\b{name}\b", headers)} == set()
    assert {name for name in new if not re.search(rf"\b{name}\b", headers)} == set()
    assert len(old) > 8


def first_cells(table: str) -> list[str]:
    return [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]


def test_new_names_are_in_the_stubs() -> None:
    """The table has all names of the stubs that no row of the other table names."""
    table = README.partition("### New names")[2].partition("### Keywords")[0]
    new = {f"cpd.{name}" for line in table.splitlines() for name in words(line.split("|")[1:2])}
    renamed = {now.strip("`") for what, now, _ in ROWS.values() if what == "renamed"}
    old = {f"cpd.{name}" for name, (what, *_) in ROWS.items() if what in ("stays", "changed")}
    names = set(api_stub.public_names())
    assert names - old - renamed <= new <= names - old


def words(cells: list[str]) -> list[str]:
    return [word for cell in cells for word in re.findall(r"`([\w.]+)`", cell)]
