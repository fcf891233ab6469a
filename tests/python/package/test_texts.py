# SPDX-License-Identifier: Apache-2.0
"""Tests malformed texts, which must raise a readable ValueError at once.

The texts have numbers of any length in every grammar, nested codecs, and very long words.
"""

from __future__ import annotations

import functools
import random
import re
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

import cpd
import cpd.compress
from cpd import _core
from cpd.numeric.hadamard import transform_of
from patience import scaled

DIGITS = ["2147483648", "99999999999", "9" * 30, "9" * 400, "9" * 5000, "0" * 5000 + "1"]
"""Digits that parsers may not accept: numbers that exceed 32 bits, 64 bits, binary64 or Python's
limit, and a 1 after 5000 zeros."""

LONGEST = 4100
"""The greatest length of an error message, in characters."""


def sweep_pattern(text):
    from cpd.study.sweeps.patterns import texts

    return texts("formats", text)


FOLDER = tempfile.TemporaryDirectory()


def recipe_file(kind, text):
    """Writes the text to a file of a kind (toml or json). Returns the recipe that it contains."""
    path = Path(FOLDER.name) / f"recipe.{kind}"
    path.write_text(text)
    return cpd.Recipe(path)


GRAMMARS = {
    "format": (
        cpd.Format,
        "e4m{} e{}m3 e{}m{} e4m3fn:bias={} e4m3:bias=-{} int{} (4,{}) ({},3) binary{}p4se "
        "binary8p{}se binary{}p-{}ue e4m{}fnuz float8_e4m{} fp{} e4m{}:nosub",
    ),
    "scaled": (
        cpd.Scaled,
        "bfp{}|int{} row|e4m3fn {}|e4m3fn {}x128|e4m3fn 1x{}|mxfp8 margin={}|mxfp8 margin=-{}|"
        "nvfp4 scale_max={}|mxfp8 scale=e{}m3|mxfp8 element=e4m{}|mxfp4 transform=hadamard{}|"
        "mxfp4 transform=hadamard16:signs=0x{}|nvfp4 tensor_scale=e8m{}|mxfp8 block={}",
    ),
    "accumulator": (
        cpd.Accumulator,
        "e6m{}|int{}|fixed<{},0>|fixed<40,{}>|fixed<40,-{}>|e6m9 chunked chunk={}|"
        "e6m9 chunked inner=e5m{}|e6m9 sequential product=e{}m3|"
        "e6m9 kahan rounding=stochastic random_bits={}|h100-fp8 a=e4m{}|h100-fp8 block={}|"
        "h100-fp8 fraction_bits={}|h100-fp8 min_exponent=-{}|h100-fp8 promote={}|"
        "h100-fp8 sum=e8m{}|h100-fp8 group={}|h100-fp8 stride={}|h100-fp8 take={}|"
        "b200-tcgen05-mxfp8 dot={}|b200-tcgen05-mxfp8 scale_block={}|int40 fraction={}",
    ),
    "cast": (cpd.Cast, "e4m{} rounding=up|e4m3 rounding=stochastic random_bits={}"),
    "codec": (
        cpd.Codec,
        "e4m{}|qsgd bits={}|qsgd bits=4 bucket={}|qsgd s={}|qsgd axis={}|qsgd whole={}|"
        "terngrad clip={}|terngrad bucket={}|"
        "one_bit bucket={}|one_bit axis={}|one_bit axis=-{}|top_k {}|top_k 0.{}|top_k 0.1 e4m{}|"
        "fp8_rows row={}|int8_rows row={}|int4 bucket={}|quantized e4m3fn {}|quantized e4m{} row|"
        "feedback e4m{}|feedback int4 {}|uniform bits={}|uniform bits=entropy c={}|"
        "uniform bits=entropy sample={}|uniform bits=entropy fraction=0.{}|"
        "uniform bits=gradient c0={}|uniform bits=gradient c1=-{}|sparse e4m{}",
    ),
    "all-reduce": (
        cpd.Reduce,
        "e4m{}|e4m3 group_size={}|e4m3 loss_scale={}|e4m3 seed={}|e4m3 step={}|"
        "e4m3 rounding=stochastic random_bits={}|e4m3 accumulator=e6m{}|"
        "e4m3 'accumulator=e6m9 chunked chunk={}'|e4m3 result=e4m{}|qsgd bits={}",
    ),
    "recipe": (
        cpd.Recipe,
        "e6m{} kahan|int{}|e6m9 chunked chunk={}|h100-fp8 promote={}|aps-e4m{}|native weight=e4m{}|"
        "native sums='e6m9 chunked chunk={}'|native loss_scale={}|native schedule='step {} bf16'",
    ),
    "recipe in TOML": (
        functools.partial(recipe_file, "toml"),
        "forward = 'e6m{} kahan'|forward = {}|forward = 'native'\nweight = 'e4m{}'|"
        "forward = 'native'\nloss_scale = {}|forward = 'native'\nloss_scale = 1e{}|"
        "forward = 'native'\nschedule = [{step = {}, recipe = 'none'}]|"
        "forward = 'native'\nrules = [{layers = 'first {}', recipe = 'none'}]|"
        "forward = 'native'\nweight = {text = 'e4m3 rounding=stochastic', seed = {}}",
    ),
    "recipe in JSON": (
        functools.partial(recipe_file, "json"),
        '{"forward": {}}|{"forward": "native", "weight": "e4m{}"}|{}|'
        '{"forward": "native", "loss_scale": {}}|{"forward": "native", "loss_scale": 1e{}}',
    ),
    "sweep": (sweep_pattern, "e[{}]m3|e[1-{}]m3|e[{}-{}]m3"),
    "hadamard": (transform_of, "hadamard{}|hadamard16:signs=0x{}"),
}
TEXTS = [
    (name, parse, text)
    for name, (parse, texts) in GRAMMARS.items()
    for text in (texts.split("|") if "|" in texts else texts.split())
]


def refusal(parse, *arguments):
    """Returns the message of the ValueError that a call raises, or None if it raises none.

    The call must not take long.
    """
    begin = time.perf_counter()
    try:
        parse(*arguments)
    except ValueError as error:
        message = str(error)
    else:
        message = None
    took = time.perf_counter() - begin
    assert took < 5 or took < scaled(5)
    return message


def check_readable(message):
    assert message
    assert len(message) <= LONGEST
    assert max(map(len, message.split())) <= 100 or "/" in message


@pytest.mark.parametrize("digits", DIGITS, ids=[f"{len(d)}-{d[0]}" for d in DIGITS])
@pytest.mark.parametrize(("name", "parse", "text"), TEXTS, ids=[f"{n}: {t}" for n, _, t in TEXTS])
def test_digits(name, parse, text, digits):
    message = refusal(parse, text.replace("{}", digits))
    if message is not None:
        check_readable(message)


def stream_of(name: str) -> bytes:
    """Returns the bytes of an encoding of no values, with a valid checksum. The text `name` stands
    where an encoding names its codec."""
    valid = cpd.Codec("fp32").encode(np.zeros(0, np.float32)).data
    body = bytearray(valid[:48])
    body[6:8] = struct.pack("<H", len(name))
    body += name.encode()
    return bytes(body) + struct.pack("<I", crc32c(body))


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@pytest.mark.parametrize(
    "name", ["e4m99999999999", "e4m" + "9" * 1000, "feedback " * 100 + "fp16", "x" * 1024]
)
def test_names_in_streams(name):
    with pytest.raises(ValueError, match="the stream is damaged") as caught:
        cpd.compress.Packet.from_bytes(stream_of(name))
    check_readable(str(caught.value))


SEEDS = {
    "all-reduce": [
        "e4m3 aps accumulator='e5m10 kahan' group_size=16 loss_scale=1 average step=3",
        "qsgd bits=4 bucket=512 random_bits=7 order=ring exchange=ring",
        "mxfp8 exchange=gather result=bf16 overflow=saturate rounding=stochastic random_bits=8",
    ],
    "sweep": ["e[2-5]m[1,3], (4,3)", "int[2-8]", "e4m3,mxfp8,e[1]m[2-3]fn"],
    "recipe": ["e6m9 chunked chunk=64 inner=e5m10", "h100-fp8 promote=32", "aps-e4m3", "int40"],
    "recipe in TOML": [
        "forward = 'native'\nweight = 'mxfp8 amax=1 factor=2'\nloss_scale = 1e3",
        "forward = 'e6m9 kahan'\nactivation = {text = 'e4m3 rounding=stochastic', seed = 3}",
        "forward = 'native'\n[[rules]]\nlayers = 'first 2 blocks'\nrecipe = 'none'",
        "forward = 'native'\n[[schedule]]\nepoch = 3\n[schedule.recipe]\nforward = 'fp16 fma'",
    ],
    "recipe in JSON": [
        '{"forward": "native", "weight": "mxfp8", "rules": [{"layers": "*.head", "recipe": null}]}',
        '{"forward": "e6m9 kahan", "schedule": [{"step": 3, "recipe": {"forward": "native"}}]}',
    ],
    "hadamard": ["hadamard16:te:bf16", "hadamard32:signs=0xdeadbeef"],
}


def mutated(seeds, rng):
    """Returns one of the valid texts `seeds` with random words removed, replaced or added."""
    words = re.findall(r"\w+|\W", rng.choice(seeds))
    pool = [*words, *re.findall(r"\w+|\W", rng.choice(seeds)), *"=:,'\"(){}[]\n-\0é", "9" * 25]
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(words) + 1)
        words[at : at + rng.randint(0, 2)] = rng.choices(pool, k=rng.randint(0, 3))
    return "".join(words)


@pytest.mark.parametrize("count", [4000, pytest.param(1_000_000, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", SEEDS)
def test_random_texts(name, count):
    rng = random.Random(count)
    parse = GRAMMARS[name][0]
    for _ in range(count):
        text = mutated(SEEDS[name], rng)
        try:
            parse(text)
        except ValueError as error:
            check_readable(str(error))
        except Exception as error:
            raise AssertionError(f"{text!r}") from error


LONG_WORDS = [
    (parse, text)
    for parse, _ in GRAMMARS.values()
    for text in (
        "x" * 20_000,
        "x " * 10_000,
        "feedback top_k 0.5 " * 20_000,
        "é" * 20_000,
        "=" * 20_000,
        "(" * 20_000,
        "\n" * 20_000,
    )
]


@pytest.mark.parametrize(("parse", "text"), LONG_WORDS)
def test_long_words(parse, text):
    message = refusal(parse, text)
    if message is not None:
        check_readable(message)


def test_readable():
    assert _core.readable("a b\nc") == "a b\nc"
    assert _core.readable("x" * 100) == "x" * 100
    assert _core.readable("x" * 101 + " y") == "x" * 80 + "… y"
    assert _core.readable("é" * 51) == "é" * 40 + "…"
    path = "/folder" * 100
    assert _core.readable(path) == path
    assert _core.readable(path * 2) == (path * 2)[:1000] + "…"
    assert len(_core.readable("word " * 10_000)) == 4001


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_nested_recipes(depth):
    within = '{"forward": "native", "rules": [{"layers": "a", "recipe": '
    for text in ("[" * depth, within * depth + "null" + "}]}" * depth):
        check_readable(refusal(recipe_file, "json", text))
    for text in ("forward = " + "[" * depth, "forward = " + "{a = " * depth + "1" + "}" * depth):
        check_readable(refusal(recipe_file, "toml", text))


LONG = ["x" * 20_000, "x " * 10_000, "9" * 5000, "e4m" + "9" * 5000, "two\nlines"]
COMMANDS = ["show LONG", "roundoff --nodes LONG", "vectors mul LONG", "train --LONG", "LONG"]
"""Commands in which an overlong text replaces the word LONG.

LONG is a format, a number, a further argument, an option, or the command itself.
"""


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_errors_are_one_line(command, capsys):
    from cpd.cli import main

    for text in LONG:
        try:
            status = main([word.replace("LONG", text) for word in command.split()])
        except SystemExit as exit:
            status = exit.code
        printed = capsys.readouterr()
        lines = printed.err.splitlines()
        assert status == 2, printed
        assert len(lines) == 1
        assert lines[0].startswith("cpd")
        assert ("unrecognized arguments" in lines[0]) == (command == "train --LONG")
        assert len(lines[0]) <= LONGEST + 100


SUBINTERPRETER = """
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
interpreters.run_string(interpreters.create(), '''
try:
    import {module}
except ImportError as error:
    print(error)
''')
"""


@pytest.mark.parametrize("module", ["cpd", "cpd._core", "cpd.nn"])
def test_subinterpreters(module):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", SUBINTERPRETER.format(module=module)],
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )
    assert done.returncode == 0, done.stderr
    assert "cpd cannot be imported in a subinterpreter" in done.stdout
