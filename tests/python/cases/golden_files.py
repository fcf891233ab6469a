# SPDX-License-Identifier: Apache-2.0
"""Golden files that version 0.7 wrote: recipes, texts of specs, vectors, a machine, and pickled
objects.

`make.py` writes a missing file. The tests read the files and compare their contents with objects
that this module constructs, or with texts and numbers in the files.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import cpd
import cpd.hardware
from cpd.numeric.hadamard import transform_of
from golden import FOLDER, dumped, floats, recorded

STORED = FOLDER / "stored"
"""The folder of all files that this module and `golden_training` write."""

# ---- recipes -------------------------------------------------------------------------------------

RECIPES: dict[str, Callable[[], cpd.Recipe]] = {
    "mxfp8": lambda: cpd.Recipe("mxfp8"),
    "sums": lambda: cpd.Recipe(
        sums=("e4m3 kahan", "e5m2", "h100-fp8"), grad_bias="e6m9", output="bf16"
    ),
    "seeds": lambda: cpd.Recipe(
        forward="e6m9 kahan rounding=stochastic",
        activation=cpd.Cast("e4m3fn", rounding="stochastic", overflow="saturate"),
        gradient=cpd.Cast("mxfp8-e5m2", rounding="stochastic", random_bits=8),
        weight="nvfp4",
    ),
    "optimizer": lambda: cpd.Recipe(
        "fp8-row",
        reduce="e4m3 aps rounding=stochastic",
        optimizer="bf16 update=stochastic random_bits=16 momentum=bf16",
        loss_scale="dynamic",
    ),
    "parts": lambda: cpd.Recipe(
        "int8 row",
        attention=cpd.Recipe("bf16", sums="fp32"),
        norm="bf16",
        softmax="fp16",
        embedding="bf16",
        residual="bf16",
        grad_input_weight="e5m2",
        rules=[("*.head", None), ("type Conv2d", "bf16"), ("last 15%", "e5m2")],
        schedule=[("step", 100, "bf16"), ("step", 300, None)],
        grad_bias="e6m9",
    ),
    "delayed": lambda: cpd.Recipe("te-delayed"),
}
"""Recipes by file name. Each recipe is stored as TOML and as JSON."""


def recipe_file(name: str, kind: str) -> str:
    recipe = RECIPES[name]()
    return recipe.to_toml() if kind == "toml" else recipe.to_json()


# ---- texts ---------------------------------------------------------------------------------------


def recipe(text: str) -> cpd.Recipe:
    """Returns the recipe that a text of version 0.7 describes. A text with semicolons is no longer
    supported. Its error suggests a new text, and the recipe is made from the new text."""
    if ";" not in text:
        return cpd.Recipe(text)
    try:
        cpd.Recipe(text)
    except ValueError as error:
        return cpd.Recipe(str(error).partition("write '")[2][:-1])
    raise AssertionError(f"{text} is no text of a recipe any more")


READERS: dict[str, Callable[[str], Any]] = {
    "format": cpd.Format,
    "scaled": cpd.Scaled,
    "hadamard": transform_of,
    "cast": cpd.Cast,
    "scaled cast": cpd.Cast,
    "accumulator": cpd.Accumulator,
    "matrix unit": cpd.Accumulator,
    "integer accumulator": cpd.Accumulator,
    "recipe": recipe,
    "codec": cpd.Codec,
    "all-reduce": cpd.Reduce,
}
"""For each kind of text, such as a format or a recipe, the function that parses the text."""
TEXTS: dict[str, tuple[str, ...]] = {
    "format": (
        *("e4m3", "e4m3fn", "e5m2fnuz", "(4, 3)", "half", "bfloat16", "FLOAT8_E4M3FN", "tf32"),
        *("e4m3fn:bias=11", "e3m2:nosub", "e4m3:unsigned", "binary8p4se", "e8m0", "int8", "sm4"),
        *("e2m1", "e2m3fn:bias=2:nosub", "int8:full"),
    ),
    "scaled": (
        *("mxfp8", "mxfp8-e5m2", "mxfp6-e2m3", "mxfp4", "mxint8", "nvfp4", "fp8-row", "bfp8"),
        *("nvfp4 block=16x16", "e4m3fn 1x128 scale=fp32", "int8 row", "e2m1 16 scale=e4m3fn"),
        *(
            "nvfp4 transform=hadamard16:te",
            "fp8-block arithmetic=deepgemm",
            "nvfp4 choose=mse arithmetic=te",
        ),
        *("mxfp8 rule=ceil margin=1 non_finite=block", "nvfp4 outer=row scale_max=256"),
    ),
    "hadamard": ("hadamard16", "hadamard16:te", "hadamard8:signs=0x5a:bf16"),
    "cast": (
        *("e5m2", "e4m3fn rounding=up overflow=saturate", "bf16 rounding=to_odd"),
        "e4m3fn rounding=stochastic random_bits=8 variant=B",
    ),
    "scaled cast": (
        *("mxfp8", "nvfp4 rounding=stochastic", "fp8-tensor history=16"),
        *("mxfp8 overflow=ieee", "fp8-tensor history=4 amax=most_recent"),
    ),
    "accumulator": (
        *("e4m3", "e4m3 kahan", "e6m9 chunked chunk=32 inner=e5m2 product=fp32", "e4m3 fma"),
        *(
            "e6m9 chunked product=exact",
            "e5m2 pairwise rounding=up",
            "bf16 sequential overflow=saturate",
        ),
        *("e4m3 kahan rounding=stochastic random_bits=8 variant=C", "h100-fp8", "h100-fp8 a=e5m2"),
        *("int32", "fixed<40,12>", "deepseek-promoted", "rtx-blackwell-nvfp4"),
        *("fixed<40,12> rounding=nearest_even", "h100-fp16 fraction_bits=23"),
    ),
    "matrix unit": (
        *("a=fp16 b=bf16", "a=e4m3fn b=e5m2 block=32 fraction_bits=13 addend=separate"),
        "a=e4m3fn b=e4m3fn sum=e8m13 sum_rounding=nearest_even promote=128",
    ),
    "integer accumulator": ("width=40 fraction=12", "width=32 fraction=8"),
    "recipe": (
        *("native", "mxfp8", "mxfp4-rht-sr", "te-delayed", "bf16", "e4m3 kahan;"),
        *("native; weight=mxfp8; output=bf16", "e6m9 kahan; activation=e4m3fn; gradient=e5m2"),
        "e4m3 kahan; grad_bias=fp32; norm=bf16; scales_at=block",
    ),
    "codec": (
        *("fp32", "e4m3fn", "mxfp8", "qsgd", "qsgd bits=4", "terngrad", "one_bit", "top_k 0.01"),
        *("top_k 0.01 int4", "uniform bits=5", "int8_rows", "fp8_rows", "nvfp4 block=32"),
        *("feedback e2m1", "int4", "blockwise nvfp4", "sparse bf16"),
    ),
    "all-reduce": (
        *("fp32", "e4m3 aps", "e4m3 aps accumulator='e5m10 kahan' seed=3 step=2"),
        *("e5m2 loss_scale=1024 overflow=saturate order=tree exchange=gather", "qsgd bits=4"),
        *(
            "e4m3 aps=paper order=ring average",
            "bf16 order=ring exchange=hierarchical group_size=4",
        ),
        *("feedback e2m1 average divide=before", "mxfp8 result=bf16"),
    ),
}
"""Texts of specs as a user writes them, by kind. The file also stores the canonical text of
each."""


def canonical(kind: str, text: str) -> Any:
    """Returns the canonical text of a spec. For recipes and all-reduces, which had no canonical
    text in version 0.7, returns the object's fields instead."""
    made = READERS[kind](text)
    if kind in ("recipe", "all-reduce"):
        return plain(kind, made)
    if kind in ("matrix unit", "integer accumulator"):
        return made.text.split(" ", 2)[2]  # 0.7 had classes for these keys alone
    return str(made) if kind == "codec" else made.text


def texts() -> dict[str, dict[str, Any]]:
    return {kind: {text: canonical(kind, text) for text in TEXTS[kind]} for kind in TEXTS}


# ---- vectors -------------------------------------------------------------------------------------

VECTORS: dict[str, Callable[[], Any]] = {
    "cast.tv": lambda: vectors("cast", ("fp16", "e4m3fn"), random=8, rounding="toward_zero"),
    "fma.csv": lambda: vectors("fma", "bf16", random=8, overflow="saturate"),
    "stochastic.jsonl": lambda: vectors(
        "cast", ("fp32", "e4m3fn"), random=8, rounding="stochastic", random_bits=8, variant="B"
    ),
    "dot.hex": lambda: vectors("dot", "e4m3fn", accumulator="e6m9 kahan", length=4, random=8),
    "block_fma.jsonl": lambda: vectors("block_fma", accumulator="h100-fp16", random=4),
    "mma.csv": lambda: vectors("mma", accumulator="rtx-blackwell-mxfp8", random=2),
}
"""Golden vectors by file name. The file's ending determines its format."""


def vectors(*operation: Any, **options: Any) -> Any:
    return cpd.hardware.make_vectors(*operation, seed=5, **options)


def write_vectors(name: str) -> None:
    VECTORS[name]().write(STORED / name)


# ---- a machine -----------------------------------------------------------------------------------

MACHINE = STORED / "machine.toml"
MACHINE_TEXT = """\
[two-racks]
summary = "A machine of the tests"
gpus = 4
within = { alpha = 1e-5, bandwidth = 2e10, shared = 8e9 }
between = { alpha = 3e-5, bandwidth = 1.25e9, port = 6e8 }
speed = 3.5
tflops = 15.7
dollars = 12.24
codec_gbps = 90.0
"""

# ---- pickles -------------------------------------------------------------------------------------

OBJECTS = STORED / "objects.pickle"


def objects() -> dict[str, Any]:
    """Returns the objects of the file objects.pickle, by name. The file specs.pickle has others."""
    x = floats((3, 32), 700)
    states = cpd.compress.States()
    wire = cpd.Reduce("feedback qsgd bits=2")
    cpd.simulate_all_reduce([[x[0]], [x[1]]], wire, states=states)
    return {
        "scaled": cpd.Scaled("nvfp4 block=16x16 transform=hadamard16:te"),
        "scaled cast": cpd.Cast("fp8-tensor", rounding="stochastic", history=16),
        "hadamard": transform_of("hadamard16:te"),
        "fixed point": cpd.Accumulator(width=40, fraction=12),
        "integer accumulator": cpd.Accumulator("fixed<40,12>"),
        "codec": cpd.Codec("qsgd bits=4", random_bits=8),
        "wire": cpd.Reduce("feedback qsgd bits=2", average=True),
        "recipe": RECIPES["seeds"](),
        "rules": RECIPES["parts"](),
        "encoded": encoded(x, "nvfp4"),
        "encoded by columns": encoded(x, "fp8-row", 0),
        "states": states,
        "packet": cpd.Codec("qsgd bits=4").encode(x[0]),
        "machine": cpd.study.Machine("alpha=1e-5 beta=1e9 gpus=4 beta_between=1.25e8"),
        "network": cpd.study.Network("resnet50"),
    }


REDUCE = "accumulator order exchange group_size aps loss_scale average divide rounding overflow"
FIELDS = {
    "all-reduce": f"format wire {REDUCE} random_bits variant result",
    "wire": f"wire {REDUCE} random_bits variant result",
    "machine": "gpus speed tflops dollars codec_gbps",
}
"""The attributes that describe objects which have no canonical text. The keys are names of such
objects or kinds of texts."""


def encoded(x: Any, text: str, axis: int = -1) -> cpd.Encoded:
    codes, scales = cpd.encode(x, text, axis=axis)
    return cpd.Encoded(codes, scales, text, x.shape, axis)


def plain(name: str, value: Any) -> Any:
    """Describes an object by texts and numbers. The texts and numbers stay comparable if the
    object's class changes in a later version."""
    if name.startswith("encoded"):
        values = recorded(cpd.decode(value))
        return {"format": str(value.format), "values": values, "axis": value.axis}
    if name == "states":
        return json.loads(json.dumps(value.state_dict(), default=bytes.hex))
    if name == "packet":
        return recorded(value.values)
    if name == "network":
        return {"shapes": [list(shape) for shape in value.shapes]}
    if isinstance(value, cpd.Recipe):
        return value.to_dict()
    if name == "fixed point":
        return {"width": value.width, "fraction": value.fraction, "rounding": value.sum_rounding}
    links = {}
    if name == "machine":  # version 0.7 had a list for each level of links
        links["within"] = [value.alpha, value.beta, value.shared, 0.0]
        links["between"] = [value.alpha_between, value.beta_between, 0.0, value.port]
    if name in FIELDS:
        return links | {field: shown(field_of(value, field)) for field in FIELDS[name].split()}
    return str(value)


def field_of(value: Any, name: str) -> Any:
    """Returns the attribute of `value` that version 0.7 called `name`. In version 0.7, an
    all-reduce's `wire` was its codec, or None if ranks sent values in a plain format."""
    if name == "wire":
        return value.codec if value.format is None else None
    return getattr(value, name)


def shown(value: Any) -> Any:
    """Converts an object's attribute to a value that JSON can represent. Specs become texts."""
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    return str(value)


def write_objects() -> None:
    OBJECTS.write_bytes(pickle.dumps(objects(), protocol=4))


def described() -> dict[str, Any]:
    return {name: plain(name, value) for name, value in objects().items()}


def writers() -> dict[str, Callable[[], None]]:
    """Maps each file's path in the folder of golden files to the function that writes the file."""
    STORED.mkdir(exist_ok=True)
    made: dict[str, Callable[[], None]] = {}
    for name in RECIPES:
        for kind in ("toml", "json"):
            path = STORED / f"recipe_{name}.{kind}"
            made[f"stored/{path.name}"] = lambda p=path, n=name, k=kind: p.write_text(
                recipe_file(n, k)
            )
    for name in VECTORS:
        made[f"stored/{name}"] = lambda n=name: write_vectors(n)
    made["stored/machine.toml"] = lambda: MACHINE.write_text(MACHINE_TEXT)
    made["stored/objects.pickle"] = write_objects
    for name, make in (("objects", described), ("texts", texts)):
        made[f"stored/{name}.json"] = lambda n=name, m=make: (STORED / f"{n}.json").write_text(
            dumped(m())
        )
    return made
