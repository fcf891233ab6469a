# SPDX-License-Identifier: Apache-2.0
"""Tests that gradients load from every supported kind of file, and errors of broken files."""

import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
from cpd.cli import main  # noqa: E402
from cpd.study import gradient_files  # noqa: E402
from cpd.study.gradient_files import shown  # noqa: E402
from cpd.study.gradients import load_gradients, save_gradients  # noqa: E402

X = np.arange(24, dtype=np.float32).reshape(4, 3, 2) / 8


def check(path: Path, names, arrays) -> None:
    """Asserts that the file has the layers `names`. An array has a layer's values, rank by rank."""
    loaded = load_gradients(path)
    assert loaded.names == names
    for index, array in enumerate(arrays):
        got = np.stack([rank[index] for rank in loaded.per_rank])
        assert got.dtype == np.float32
        np.testing.assert_array_equal(got, array)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", "<f8"])
def test_npy(tmp_path, order, dtype):
    path = tmp_path / "layer.npy"
    np.save(path, np.array(X, dtype, order=order))
    check(path, ["layer"], [X])


def test_compressed_npz(tmp_path):
    path = tmp_path / "g.npz"
    np.savez_compressed(path, a=X, b=X[:, 0])
    check(path, ["a", "b"], [X, X[:, 0]])


@pytest.mark.parametrize(
    ("dtype", "way_out"), [("V2", "view(ml_dtypes.bfloat16)"), ("V1", "any 8-bit type")]
)
def test_types_that_numpy_cannot_name(tmp_path, capsys, dtype, way_out):
    """np.savez stores bfloat16 and 8-bit floats without their type; such a file is refused."""
    path = tmp_path / "g.npz"
    np.savez(path, w=np.zeros((4, 8), dtype))
    with pytest.raises(ValueError, match="ml_dtypes") as caught:
        load_gradients(path)
    assert way_out in str(caught.value)
    assert ".safetensors" in str(caught.value)
    assert main(["roundoff", "--gradients", str(path), "--reduce", "e5m2"]) == 2
    assert way_out in capsys.readouterr().err.replace("\n", " ")


A, B = torch.from_numpy(X), torch.from_numpy(X[:, 0]).bfloat16()


@pytest.mark.parametrize("suffix", [".pt", ".pth"])
@pytest.mark.parametrize(
    ("content", "names"),
    [
        ({"a": A, "b": B}, ["a", "b"]),
        ({"model": {"a": A, "deep": {"b": B}}}, ["model.a", "model.deep.b"]),
        ({"a": torch.nn.Parameter(A), "b": B.to(torch.float64)}, ["a", "b"]),
        ([{"a": A[r], "b": B[r]} for r in range(4)], ["a", "b"]),
        ([{"a": A[r], "m": {"b": B[r]}} for r in range(4)], ["a", "m.b"]),
        (tuple([A[r], B[r]] for r in range(4)), ["0", "1"]),
        ({f"rank{r}": {"a": A[r], "b": B[r]} for r in range(4)}, ["a", "b"]),
        ({f"rank{r}/{n}": t[r] for r in range(4) for n, t in (("a", A), ("b", B))}, ["a", "b"]),
    ],
)
def test_torch(tmp_path, suffix, content, names):
    path = tmp_path / f"g{suffix}"
    torch.save(content, path)
    check(path, names, [X, X[:, 0]])


def test_one_tensor_and_the_older_kind_of_file(tmp_path):
    torch.save(A, tmp_path / "weight.pt")
    check(tmp_path / "weight.pt", ["weight"], [X])
    torch.save({"a": A}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    check(tmp_path / "old.pt", ["a"], [X])


@pytest.mark.parametrize("name", ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz"])
def test_eight_bit_floats(tmp_path, name):
    torch.save({"a": A.to(getattr(torch, f"float8_{name}"))}, tmp_path / "g.pt")
    check(tmp_path / "g.pt", ["a"], [cpd.cast(X, name)])


def test_views_of_one_storage(tmp_path):
    path = tmp_path / "g.pt"
    torch.save({"a": A.transpose(1, 2), "b": A[:, 1:]}, path)
    check(path, ["a", "b"], [X.transpose(0, 2, 1), X[:, 1:]])


def test_binary64_is_rounded_only_when_asked(tmp_path, capsys):
    path, out = tmp_path / "g.npz", tmp_path / "t.json"
    np.savez(path, x=np.full((2, 3), 0.1))
    assert main(["roundoff", "--gradients", str(path)]) == 2
    assert "--round" in capsys.readouterr().err
    assert main(["roundoff", "--gradients", str(path), "--round", "--json", str(out)]) == 0
    assert json.loads(out.read_text())["roundoff"][0]["count"] == 3
    loaded = load_gradients(path, round=True)
    assert loaded.per_rank[1][0].tolist() == [float(np.float32(0.1))] * 3
    np.savez(path, x=np.full((2, 3), 1e300))
    with pytest.raises(ValueError, match=r"g\.npz: 'x' holds values beyond binary32, 6 of them"):
        load_gradients(path, round=True)
    assert main(["roundoff", "--round"]) == 2
    assert "--round needs --gradients" in capsys.readouterr().err


def test_binary64_keeps_subnormals_where_the_program_flushes_them(tmp_path):
    path = tmp_path / "g.npz"
    least = 2.0**-149
    np.savez(path, x=np.array([[3 * least, -least, 1.0]]), y=np.array([[1.5 * least]]))
    torch.set_flush_denormal(True)
    try:
        with pytest.raises(ValueError, match="'y' holds binary64 values that are not binary32"):
            load_gradients(path)
        x, y = load_gradients(path, round=True).per_rank[0]
    finally:
        torch.set_flush_denormal(False)
    assert x.tolist() == [3 * least, -least, 1.0]
    assert y.tolist() == [2 * least]


# ---- hostile and broken files --------------------------------------------------------------------


class Marks:
    """An object that creates a file if a program unpickles the object."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def npy(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(text: str, version: bytes = b"\x01\x00") -> bytes:
    """Returns the bytes of a .npy file with this header and no values."""
    text += "\n"
    length = struct.pack("<H" if version == b"\x01\x00" else "<I", len(text))
    return b"\x93NUMPY" + version + length + text.encode("latin1")


def described(shape: str, descr: str = "'<f4'") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}")


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name.replace("__", "."), content)
    return stream.getvalue()


def twice() -> bytes:
    return archive(x__npy=npy(X), y__npy=npy(X)).replace(b"y.npy", b"x.npy")


def patched(content: bytes, what: bytes, offset: int, value: bytes) -> bytes:
    """Returns a copy of `content` in which `value` overwrites some bytes.

    The bytes begin `offset` bytes after the start of each occurrence of `what`.
    """
    changed = bytearray(content)
    at = changed.find(what)
    while at >= 0:
        changed[at + offset : at + offset + len(value)] = value
        at = changed.find(what, at + 1)
    return bytes(changed)


NPY = {
    "empty": b"",
    "text": b"these are no gradients\n",
    "magic alone": b"\x93NUMPY",
    "cut in its header": npy(X)[:40],
    "cut in its values": npy(X)[:-1],
    "more than its values": npy(X) + b"\0",
    "objects": npy(np.array([None, 1], object)),
    "integers": npy(X.astype(int)),
    "structured": npy(np.zeros(3, [("a", "f4")])),
    "text values": npy(np.array(["a", "b"])),
    "long double": npy(X.astype(np.longdouble)),
    "no rank": npy(np.float32(1)),
    "no values": npy(np.zeros((2, 0), np.float32)),
    "too many ranks": npy(np.zeros(70_000, np.float32)),
    "petabytes": described(f"({1 << 50},)"),
    "beyond int64": described(f"({1 << 62}, {1 << 62})"),
    "negative": described("(-4, -6)"),
    "a shape of words": described("('a',)"),
    "no shape": header("{'descr': '<f4', 'fortran_order': False}"),
    "no dict": header("[1, 2]"),
    "not Python": header("{'descr': '<f4', 'shape': (((("),
    "unbalanced in version 2": header("{'descr': '<f4', ((((", b"\x02\x00"),
    "an indent that ends nothing": header("  {\n 'descr'\n}", b"\x02\x00"),
    "a call": header("__import__('os').system('true')"),
    "deeply nested": header("(" * 5000),
    "a type that is none": described("(2,)", "'<q7'"),
    "nested types": described("(2,)", "[('a', [('b', '<f4')])]"),
    "version 9": header("{}", b"\x09\x00"),
    "pickle": pickle.dumps({"a": [1.0]}),
}

NPZ = {
    **{f"a member: {name}": archive(x__npy=content) for name, content in NPY.items()},
    "nothing": b"",
    "no zip": b"\x50\x4b\x03\x04 and no more",
    "an .npy": npy(X),
    "no members": archive(),
    "a member of text": archive(readme__txt=b"hello"),
    "twice the same": twice(),
    "cut": archive(x__npy=npy(X))[:-30],
    "encrypted": patched(
        patched(archive(x__npy=npy(X)), b"PK\x01\x02", 8, b"\x01"), b"PK\x03\x04", 6, b"\x01"
    ),
    "a method that does not exist": patched(
        patched(archive(x__npy=npy(X)), b"PK\x01\x02", 10, b"\x63"), b"PK\x03\x04", 8, b"\x63"
    ),
    "a member of petabytes": patched(
        archive(x__npy=described(f"({1 << 30},)")), b"PK\x01\x02", 24, b"\xfe\xff\xff\xff"
    ),
    "no checksum of its own": patched(archive(x__npy=npy(X)), b"PK\x01\x02", 16, b"\0\0\0\0"),
    "a layer of objects": archive(a__npy=npy(X), b__npy=npy(np.array([None], object))),
    "a name for terminals": archive(**{"\x1b[31m__npy": npy(np.int32([1, 2]))}),
    "other ranks": archive(**{"rank0/a__npy": npy(X[0]), "rank1/a__npy": npy(X[0, :1])}),
    "a distant rank": archive(**{"rank0/a__npy": npy(X), "rank999999999/a__npy": npy(X)}),
    "a number that is none": archive(
        **{"rank0/a__npy": npy(X), f"rank{'9' * 5000}/a__npy": npy(X)}
    ),
    "a rank twice": archive(**{"rank0/a__npy": npy(X), "rank00/a__npy": npy(X)}),
    "two layouts": archive(**{"rank0/a__npy": npy(X), "b__npy": npy(X)}),
    "no ranks": archive(a__npy=npy(X[:0])),
    "two numbers of ranks": archive(a__npy=npy(X[:2]), b__npy=npy(X[:3])),
}

SAFETENSORS = {
    "nothing": b"",
    "a length of exabytes": b"\xff" * 8 + b"{}",
    "no JSON": struct.pack("<Q", 4) + b"{{{{",
    "offsets beyond": struct.pack("<Q", 56)
    + b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}  ',
    "a shape of petabytes": struct.pack("<Q", 77)
    + b'{"a":{"dtype":"F32","shape":[1125899906842624,1024],"data_offsets":[0,8]}}   '
    + b"\0" * 8,
    "integers": struct.pack("<Q", 56)
    + b'{"a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}  '
    + b"\0" * 8,
}


def saved(content, **options) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream, **options)
    return stream.getvalue()


def itself() -> bytes:
    loop: dict = {}
    loop["a"] = loop
    return saved(loop)


def doubling() -> bytes:
    """Returns a file in which one tensor has 2^21 names, through nested dictionaries."""
    level: dict = {"x": A}
    for _ in range(20):
        level = {"a": level, "b": level}
    return saved({"a": level, "b": level})


def in_a_tar() -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as file:
        file.addfile(tarfile.TarInfo("storages"))
    return stream.getvalue()


TORCH = {
    "nothing": b"",
    "text": b"these are no gradients\n",
    "cut": saved({"a": A})[:-40],
    "cut in the middle": saved({"a": A})[:300],
    "older and cut": saved({"a": A}, _use_new_zipfile_serialization=False)[:-9],
    "an .npz": archive(x__npy=npy(X)),
    "a tar": in_a_tar(),
    "plain pickle": pickle.dumps({"a": [1.0]}),
    "a number": saved(3.0),
    "numbers": saved({"a": A, "step": 3}),
    "none": saved({"a": None}),
    "tensors without ranks": saved([A, A]),
    "integers": saved({"a": A.int()}),
    "complex": saved({"a": A.to(torch.complex64)}),
    "sparse": saved({"a": A[0].to_sparse()}),
    "empty": saved({}),
    "no values": saved({"a": A[:, :0]}),
    "another number of layers": saved([{"a": A}, {}]),
    "other shapes": saved([{"a": A}, {"a": A[0]}]),
    "a name twice": saved({"a": {"b": A}, "a.b": A}),
    "terabytes that are one value": saved({"a": torch.zeros(1).expand(2, 1 << 40)}),
    "itself": itself(),
    "2^21 names": doubling(),
    "a meta tensor": saved({"a": torch.empty(4, 1 << 40, device="meta")}),
}


TEXTS = {
    (".npy", "cut in its values"): "the array should have 96 bytes of values, the file holds 95",
    (".npy", "objects"): "the array holds pickled objects; only floating-point values are read",
    (".npy", "integers"): "the array must hold floating-point values, got int64",
    (".npy", "no rank"): "'bad' has no leading dimension of ranks",
    (".npy", "no values"): "holds no values",
    (".npy", "too many ranks"): "the leading dimension is the rank, of which there are at most "
    "65536, got 70000",
    (".npy", "negative"): "the array has a shape that does not exist, (-4, -6)",
    (".npy", "version 9"): "the array is of .npy version (9, 0), must be (1, 0) or (2, 0)",
    (".npz", "no members"): "holds no arrays",
    (".npz", "a member of text"): "'readme.txt' in it is not a .npy array",
    (".npz", "twice the same"): "holds 'x' twice",
    (".npz", "other ranks"): "rank1/a has shape (1, 2), rank0's is (3, 2)",
    (".npz", "a distant rank"): "ranks must be 0…1, got 999999999 but not 1",
    (".npz", "two layouts"): "has both 'rank{r}/layer' names and 'b'; use one layout",
    (".npz", "no ranks"): "'a' has no leading dimension of ranks",
    (".npz", "two numbers of ranks"): "the leading dimension (ranks) differs: a 2, b 3",
    (".npz", "a rank twice"): "has both 'rank{r}/layer' names and 'rank00/a'; use one layout",
    (".safetensors", "integers"): "'a' must hold floating-point values, got int32",
    (".pt", "plain pickle"): "holds something else than tensors in dicts and lists, or is cut "
    "short; nothing else is read",
    (".pt", "a number"): "must hold tensors, got float",
    (".pt", "numbers"): "'step' must be a tensor, got int",
    (".pt", "tensors without ranks"): "a list in it must give a dict of tensors for each rank",
    (".pt", "sparse"): "'a' must be a dense tensor with values, got torch.sparse_coo on cpu",
    (".pt", "a meta tensor"): "'a' must be a dense tensor with values, got torch.strided on meta",
    (".pt", "another number of layers"): "'rank1' in it holds no tensors",
    (".pt", "terabytes that are one value"): "'a' repeats its values, (2, 1099511627776) of them",
    (".pt", "itself"): "'a' in it occurs in another place too",
}
"""Maps the ending and the name of each invalid file to the expected error."""


@pytest.mark.parametrize(
    ("suffix", "name", "content"),
    [
        pytest.param(suffix, name, content, id=f"{suffix} {name}")
        for suffix, files in (
            (".npy", NPY),
            (".npz", NPZ),
            (".safetensors", SAFETENSORS),
            (".pt", TORCH),
        )
        for name, content in files.items()
    ],
)
def test_a_bad_file_gives_one_line(tmp_path, capsys, suffix, name, content):
    """For an invalid gradient file, `cpd roundoff` prints one line that says what is wrong."""
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"bad\.") as error:
        load_gradients(path)
    assert main(["roundoff", "--gradients", str(path)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert told.err.isprintable() or told.err[:-1].isprintable()
    assert str(path) in told.err
    if text := TEXTS.get((suffix, name)):
        assert str(error.value) == f"{path}: {text}"


def nested(depth):
    """Returns a tensor inside `depth` nested dictionaries with long names."""
    return torch.ones(2, 3) if depth == 0 else {"x" * 100: nested(depth - 1)}


def test_sizes_that_no_machine_holds(tmp_path, monkeypatch):
    path = tmp_path / "big.npz"
    np.savez(path, x=X)
    with monkeypatch.context() as small:
        small.setattr(gradient_files.os, "sysconf", lambda name: 1)
        with pytest.raises(ValueError, match=r"says that it holds .* GB, this machine's memory is"):
            load_gradients(path)
    with (
        pytest.raises(ValueError, match=r"big\.npz: holds more than this machine's memory"),
        gradient_files._told(path, "npz"),
    ):
        raise MemoryError
    short = io.BytesIO()
    np.lib.format.write_array(short, X)
    full = short.tell()
    short.truncate(full - 4)
    short.seek(0)
    with pytest.raises(ValueError, match=r"should have \d+ bytes of values, \d+ can be read"):
        gradient_files._npy(short, full, "x")
    torch.save(nested(12), tmp_path / "deep.pt")
    with pytest.raises(ValueError, match=r"the name 'x+…' in it is too long"):
        load_gradients(tmp_path / "deep.pt")


def test_other_things_that_gradients_cannot_be(tmp_path):
    """Errors are raised for ranks with different layers, values that are not binary32, and a layer
    name that the file lacks."""
    path = tmp_path / "bad.npz"
    np.savez(path, **{"rank0/x": X[0], "rank1/y": X[0]})
    with pytest.raises(ValueError, match="rank 1 does not hold the same layers as rank 0"):
        load_gradients(path)
    np.savez(path, x=np.full((2, 3), 0.1))
    text = "'x' holds binary64 values that are not binary32; --round rounds them"
    with pytest.raises(ValueError, match=text):
        load_gradients(path)
    np.savez(path, x=np.full((2, 3), 1e300))
    with pytest.raises(ValueError, match="'x' holds values beyond binary32, 6 of them"):
        load_gradients(path)
    np.savez(path, x=X)
    with pytest.raises(ValueError, match="no layer 'z'; the layers are x"):
        load_gradients(path).layer("z")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".pth", ".safetensors"])
def test_nothing_in_a_file_is_executed(tmp_path, capsys, suffix):
    mark, path = tmp_path / "mark", tmp_path / f"g{suffix}"
    payload = np.array([Marks(mark)], object)
    contents = [
        pickle.dumps(Marks(mark)),
        npy(payload),
        archive(x__npy=npy(payload)),
        saved(Marks(mark)),
        saved({"a": Marks(mark)}, _use_new_zipfile_serialization=False),
    ]
    for content in contents:
        path.write_bytes(content)
        assert main(["roundoff", "--gradients", str(path)]) == 2
        assert not mark.exists()
        assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".pt", ".safetensors"])
def test_every_cut_and_many_flips(tmp_path, suffix):
    """A cut or changed file gives gradients or raises a ValueError that names the file."""
    path = tmp_path / f"g{suffix}"
    if suffix == ".npy":
        np.save(path, X)
    elif suffix == ".pt":
        torch.save({"a": A}, path)
    else:
        save_gradients(path, ["a"], [[layer] for layer in A])
    whole = path.read_bytes()
    rng = np.random.default_rng(zlib.crc32(suffix.encode()))
    cuts = [whole[:n] for n in range(0, len(whole), max(1, len(whole) // 60))]
    flips = []
    for _ in range(150):
        changed = bytearray(whole)
        changed[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        flips.append(bytes(changed))
    for content in cuts + flips:
        path.write_bytes(content)
        told = _refusal(path)
        assert told is None or (str(path) in told and "\n" not in told)


def _refusal(path: Path) -> str | None:
    try:
        load_gradients(path)
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", ["missing.pt", "folder.npz"])
def test_files_that_cannot_be_opened(tmp_path, capsys, name):
    (tmp_path / "folder.npz").mkdir()
    assert main(["roundoff", "--gradients", str(tmp_path / name)]) == 2
    assert name in capsys.readouterr().err


def test_names_are_shown_without_what_a_terminal_obeys():
    assert shown("a.\x1b[2Jb\nc é") == "a.\\x1b[2Jb\\nc é"


# ---- values that are not finite ------------------------------------------------------------------


def test_inputs_that_are_not_finite_are_named(tmp_path, capsys):
    path, out = tmp_path / "g.npz", tmp_path / "t.json"
    np.savez(path, **{"\x1b[2J": np.float32([[np.inf]])})
    assert main(["roundoff", "--gradients", str(path)]) == 0
    assert "layer '\\x1b[2J' holds 1 Inf (rank 0); " in capsys.readouterr().err
    bad = X.copy()
    bad[1, 0, 0], bad[3, 2, 1], bad[3, 0, 0] = np.nan, np.inf, -np.inf
    np.savez(path, good=X, bad=bad)
    assert main(["roundoff", "--gradients", str(path), "--json", str(out)]) == 0
    told = capsys.readouterr().err
    assert f"{path}: layer 'bad' holds 1 NaN and 2 Inf (ranks 1, 3)" in told
    assert "good" not in told
    written = json.loads(out.read_text())
    assert written["not_finite"] == [{"layer": "bad", "nan": 1, "infinite": 2, "ranks": [1, 3]}]
    assert written["roundoff"][0]["non_finite"] == 2
    assert main(["roundoff", "--gradients", str(path), "--layer", "good"]) == 0
    assert capsys.readouterr().err == ""
