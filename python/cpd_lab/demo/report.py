# SPDX-License-Identifier: Apache-2.0
"""The HTML page of a demo's results, in one file: fills the template `report.html.j2`."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpd._files import write_text
from cpd.compress.codecs import Codec
from cpd.numeric import formats
from cpd.study.pages import fill
from cpd_lab.demo import figures
from cpd_lab.demo.results import Demo, accuracy_range, state_of
from cpd_lab.picture import as_file
from cpd_lab.shares import percent
from cpd_lab.train.runs import Run
from cpd_lab.train.wire import power_of_two

REPORT, ACCURACY = "report.html", "accuracy.svg"
_TEMPLATE = Path(__file__).with_name("report.html.j2")

# The runs that the report's text mentions. Each entry has the run's format, whether APS is on, and
# whether a loss scale is set.
_ROWS = {
    "fp32": ("fp32", False, False),
    "plain": ("e4m3", False, False),
    "scaled": ("e4m3", False, True),
    "aps": ("e4m3", True, False),
    "aps_4_bits": ("e3m0", True, False),
}


def write_report(demo: Demo, folder: Path) -> Path:
    """Writes report.html and accuracy.svg into `folder` and returns the path of report.html.

    accuracy.svg has the curves of accuracy by epoch alone.
    """
    write_text(folder / ACCURACY, as_file(figures.accuracy_curves(demo.table)))
    path = folder / REPORT
    write_text(path, render(demo))
    return path


def render(demo: Demo) -> str:
    """Returns the report as HTML."""
    named = {name: _find(demo, *key) for name, key in _ROWS.items()}
    runs = [*demo.table, *demo.shallow, *demo.codecs]
    return fill(
        _TEMPLATE,
        power=_power,
        powers=_powers,
        **named,
        settings=demo.settings,
        options=demo.options,
        training=demo.options.training,
        kind=lambda run: "good" if run.accuracy > 0.8 * named["fp32"].accuracy else "bad",
        e4m3=formats.as_format("e4m3"),
        e5m2=formats.as_format("e5m2"),
        accuracy=_accuracy(demo),
        ranges=_ranges(**named),
        search=_search(demo, **named),
        depth=_depth(demo, named["fp32"]),
        roundoff=_roundoff(demo),
        codecs=_codecs(demo, named["fp32"], named["aps"]),
        runs=runs,
        hashes=[(run.label, run.depth, run.weights) for run in runs],
        versions=", ".join(f"{name} {is_}" for name, is_ in demo.settings.versions.items()),
    )


# ---- what the sections show -------------------------------------------------------------------


def _accuracy(demo: Demo) -> dict[str, Any]:
    every = [demo.of_all_seeds(run) for run in demo.table]
    return {
        "rows": [
            (
                run.label,
                formats.as_format(run.format).bits,
                accuracy_range(seeds),
                percent(run.underflow),
                f"{run.total('overflowed'):,}",
                state_of(seeds),
            )
            for run, seeds in zip(demo.table, every, strict=True)
        ],
        "seeds": len(every[0]),
        "diverged": any(run.diverged for run in demo.table),
        "figure": figures.accuracy_curves(demo.table),
    }


def _ranges(fp32: Run, plain: Run, aps: Run, **_: Run) -> dict[str, Any]:
    narrow = formats.as_format("e4m3")
    layers = figures.weight_layers(fp32)
    shares = [figures.share_lost(layer.exponents["1"], narrow) for layer in layers]
    top = figures.top_exponent(narrow)
    low, high = percent(min(shares)), percent(max(shares))
    return {
        "between": low if low == high else f"{low} to {high}",
        "rows": [
            (
                layer.name.split(".")[0],
                percent(share),
                percent(figures.share_lost(layer.relative["1"], narrow, top)),
                percent(_share(plain, layer.name)),
                percent(_share(aps, layer.name)),
            )
            for layer, share in zip(layers, shares, strict=True)
        ],
        "figure": figures.gradient_ranges(fp32, ("e4m3", "e3m0")),
    }


def _search(demo: Demo, plain: Run, scaled: Run, aps: Run, **_: Run) -> dict[str, Any]:
    return {
        "tried": demo.options.search_exponents,
        "usable": sum(run.accuracy >= 0.95 * scaled.accuracy for run in demo.search),
        "diverged": [int(math.log2(run.loss_scale)) for run in demo.search if run.diverged],
        "figure": figures.loss_scale_search(demo.search, aps, plain),
    }


def _depth(demo: Demo, deep: Run) -> dict[str, Any]:
    shallow, plain = demo.shallow
    pairs = [(deep, run) for run in demo.table[:2]] + [(shallow, run) for run in demo.shallow]
    return {
        "fp32": shallow,
        "plain": plain,
        "kept": percent(1 - _first_epoch_lost(shallow, plain)),
        "kept_deep": percent(1 - _first_epoch_lost(deep, plain)),
        "rows": [
            (run.depth, run.label, f"{run.accuracy:.3f}", percent(_first_epoch_lost(fp32, run)))
            for fp32, run in pairs
        ],
    }


def _codecs(demo: Demo, *formats_before: Run) -> dict[str, Any]:
    sources = {name: row["source"] for name, row in Codec.named().items()}
    return {
        "rows": [
            (
                run.wire or run.label,
                sources.get(run.wire.split(" ")[0], ""),
                f"{run.bits_a_value:.2f}",
                f"{run.bytes:,}",
                f"{run.accuracy:.3f}",
                run.state,
            )
            for run in (*formats_before, *demo.codecs)
        ],
        "count": demo.table[0].values,
    }


def _roundoff(demo: Demo) -> dict[str, Any]:
    study = demo.roundoff
    wire = formats.as_format(study.format)
    main, others = study.series[0].rows, study.series[1:]
    least = min(main, key=lambda row: row.error)
    return {
        "nodes": study.nodes,
        "least": least.group_size,
        "figure": figures.roundoff_by_group_size(study),
        "head": (
            "Group size",
            "Eq. 5 error",
            "Relative RMS",
            *(f"Eq. 5, {series.label}" for series in others),
            "Steps",
        ),
        "rows": [
            (
                f"{row.group_size}" + (" (no groups)" if row.group_size == study.nodes else ""),
                _hundredths(row.error),
                _hundredths(row.relative_rms),
                *(_hundredths(series.rows[index].error) for series in others),
                row.steps,
            )
            for index, row in enumerate(main)
        ],
        "best": main.index(least),
        "caption": f"({wire.exp},{wire.man}) with APS, {study.nodes} nodes, ring across groups",
        "zeros": main[0].zero_references,
        "count": main[0].count,
        "options": study.options,
    }


# ---- pieces -----------------------------------------------------------------------------------


def _find(demo: Demo, format: str, aps: bool, scaled: bool) -> Run:
    for run in demo.table:
        if (run.format, bool(run.aps), run.loss_scale != 1) == (format, aps, scaled):
            return run
    raise ValueError(f"the demo has no row {format}, APS {'on' if aps else 'off'}")


def _share(run: Run, name: str) -> float:
    layer = next(layer for layer in run.layers if layer.name == name)
    return layer.underflowed / layer.nonzero if layer.nonzero else 0.0


def _first_epoch_lost(fp32: Run, run: Run) -> float:
    if run.format == "fp32":
        return 0.0
    counts: dict[str, int] = {}
    for layer in fp32.layers:
        for exponent, number in layer.exponents["1"].items():
            counts[exponent] = counts.get(exponent, 0) + number
    return figures.share_lost(counts, formats.as_format(run.format))


def _hundredths(share: float) -> str:
    return f"{100 * share:.2f} %"


def _power(value: float | None) -> str:
    """Returns a power of two in the form 2⁻⁹, another value in decimal, and "none" for None."""
    if value is None:
        return "none"
    mantissa, exponent = math.frexp(value)
    return power_of_two(exponent - 1) if mantissa == 0.5 else f"{value:g}"


def _powers(exponents: Sequence[int]) -> str:
    """Returns powers of two in ascending order, such as '2¹, 2⁴ … 2⁹'.

    Three or more consecutive exponents are shortened to the first and the last.
    """
    ranges: list[list[int]] = []
    for exponent in sorted(exponents):
        if ranges and exponent == ranges[-1][-1] + 1:
            ranges[-1].append(exponent)
        else:
            ranges.append([exponent])
    words: list[str] = []
    for run in ranges:
        if len(run) > 2:
            words.append(f"{power_of_two(run[0])} … {power_of_two(run[-1])}")
        else:
            words += [power_of_two(exponent) for exponent in run]
    return ", ".join(words)
