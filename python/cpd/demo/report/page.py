# SPDX-License-Identifier: Apache-2.0
"""One self-contained HTML page of what the demo measured."""

import math
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from cpd.demo.report import figures
from cpd.demo.report.figures import percent
from cpd.demo.report.results import REPORT, Demo, Run, accuracy_range, state_of
from cpd.demo.training.options import power_of_two
from cpd.numeric import formats

_CSS = """
:root { color-scheme: light; --ink: #1c2430; --soft: #566070; --line: #dde2e8; --tint: #f5f7f9; }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2.2rem 1.4rem 4rem; color: var(--ink);
  background: #fff; font: 16px/1.6 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; letter-spacing: -.01em; }
h2 { font-size: 1.3rem; margin: 2.8rem 0 .6rem; padding-top: 1.2rem;
  border-top: 1px solid var(--line); }
p, ul { max-width: 46rem; }
.lead { font-size: 1.08rem; color: var(--soft); margin-top: 0; }
figure { margin: 1.3rem 0; }
svg { width: 100%; height: auto; display: block; }
figcaption, .note { color: var(--soft); font-size: .9rem; max-width: 46rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; margin: 1rem 0 .6rem; font-size: .93rem;
  font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); font-size: .9rem; padding-bottom: .4rem; }
th, td { padding: .42rem .7rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
thead th { border-bottom: 2px solid #b9c1cb; font-weight: 600; white-space: nowrap; }
tbody th { font-weight: 600; white-space: nowrap; }
.number { text-align: right; white-space: nowrap; }
tr.best td, tr.best th { background: #eaf4ee; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem;
  margin: 1.4rem 0; }
.card { border: 1px solid var(--line); border-radius: .5rem; padding: .7rem .9rem;
  background: var(--tint); }
.card b { display: block; font-size: 1.55rem; line-height: 1.25; }
.card span { color: var(--soft); font-size: .88rem; }
.good b { color: #00704f; }
.bad b { color: #b34a00; }
code { font: .86em/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
pre { background: var(--tint); border: 1px solid var(--line); border-radius: .4rem;
  padding: .7rem .9rem; overflow-x: auto; }
details { margin: .8rem 0; }
summary { cursor: pointer; color: #00598c; }
@media screen {
  figure { overflow-x: auto; }
  svg { min-width: 38rem; }
}
@media print {
  pre { white-space: pre-wrap; overflow-wrap: anywhere; }
  body { max-width: none; padding: 0; font-size: 10.5pt; }
  h2 { break-after: avoid; }
  figure, tr, .card, pre { break-inside: avoid; }
  .scroll { overflow: visible; }
}
"""


def write_report(demo: Demo, folder: Path) -> Path:
    """Writes report.html into `folder` and returns its path."""
    path = folder / REPORT
    path.write_text(render(demo), encoding="utf-8")
    return path


def render(demo: Demo) -> str:
    """The whole page."""
    sections = [
        _summary(demo),
        _accuracy(demo),
        _ranges(demo),
        _search(demo),
        _when(demo),
        _roundoff(demo),
        _again(demo),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>CPD: 8-bit gradients, without and with APS</title>\n<style>{_CSS}</style>\n"
        "</head>\n<body>\n<main>\n" + "\n".join(sections) + "\n</main>\n</body>\n</html>\n"
    )


# ---- sections ---------------------------------------------------------------------------------


def _summary(demo: Demo) -> str:
    settings = demo.settings
    fp32, plain, _, aps = (_find(demo, *key) for key in _KEYS[:4])
    return f"""<header>
<h1>8-bit gradients, without and with APS</h1>
<p class="lead">A digit classifier trained on {settings.nodes} emulated nodes whose gradients
are summed in FP32, in 8-bit and in 4-bit floating point: every contribution and every partial sum
rounded.</p>
</header>
<div class="cards">
{_card(fp32.accuracy, "FP32 gradients, 32 bits")}
{_card(plain.accuracy, "(4,3) gradients, 8 bits", _kind(plain, fp32))}
{_card(aps.accuracy, "(4,3) + APS, 8 bits", _kind(aps, fp32))}
{_card(_find(demo, *_KEYS[5]).accuracy, "(3,0) + APS, 4 bits", _kind(_find(demo, *_KEYS[5]), fp32))}
</div>
<p>(4,3) means 4 exponent bits and 3 mantissa bits, with a sign bit. The network has
{settings.depth} hidden layers of {settings.width} units with ReLU; the data are
scikit-learn's 1797 handwritten digits, a fifth of them held out. Each node takes
{settings.batch} images a step, divides its loss by {settings.nodes} and computes its
gradients apart; layer by layer, all nodes' gradients go through one all-reduce in the format named.
SGD at {settings.lr:g} with momentum {settings.momentum:g}, {settings.epochs} epochs,
seed {settings.seed}. Weights, activations and the optimizer stay in FP32, so whatever differs
comes from the gradients' format.</p>"""


def _accuracy(demo: Demo) -> str:
    rows = [
        (
            run.label,
            _bits(run),
            accuracy_range(demo.of_all_seeds(run)),
            percent(run.underflow),
            f"{run.total('overflowed'):,}",
            state_of(demo.of_all_seeds(run)),
        )
        for run in demo.table
    ]
    seeds = len(demo.of_all_seeds(demo.table[0]))
    ranges = (
        f" Accuracies are ranges over {seeds} seeds, {demo.table[0].seed} and those behind it; all "
        "else on this page is of the first."
        if seeds > 1
        else ""
    )
    table = _table(
        ("Gradients", "Bits", "Accuracy", "Lost to zero", "Overflows", "State"),
        rows,
        numbers=(1, 2, 3, 4),
    )
    return f"""<section>
<h2>Accuracy</h2>
{table}
<p class="note">‘Lost to zero’: the share of nonzero gradient values that the cast turned into
zero, over all layers, nodes and steps. ‘Overflows’: sums that became infinite though no
contribution was. Labels like × {power_of_two(8)} name a constant loss scale.{ranges}</p>
{
        _figure(
            figures.accuracy_curves(demo.table),
            "A cross marks a run that diverged: a weight became "
            "infinite or NaN, and training stopped there."
            if any(r.diverged for r in demo.table)
            else "Held-out accuracy after every epoch.",
        )
    }
</section>"""


def _ranges(demo: Demo) -> str:
    fp32, plain, _, aps = (_find(demo, *key) for key in _KEYS[:4])
    narrow = formats.format("e4m3")
    layers = figures.weight_layers(fp32)
    shares = [figures.share_lost(layer.exponents["1"], narrow) for layer in layers]
    with_aps = [
        figures.share_lost(layer.relative["1"], narrow, figures.top_exponent(narrow))
        for layer in layers
    ]
    rows = [
        (
            layer.name.split(".")[0],
            percent(lost),
            percent(lost_aps),
            percent(_share(plain, layer.name)),
            percent(_share(aps, layer.name)),
        )
        for layer, lost, lost_aps in zip(layers, shares, with_aps, strict=True)
    ]
    table = _table(
        ("Layer", "First epoch", "First epoch, APS", "Whole (4,3) run", "Whole (4,3) + APS run"),
        rows,
        numbers=(1, 2, 3, 4),
        caption="Share of nonzero weight gradients that (4,3) turns into zero",
    )
    return f"""<section>
<h2>Why it fails: the gradients lie below the format</h2>
<p>The least positive value of (4,3) is {_power(narrow.min_subnormal)}; whatever is no larger than
half of that, {_power((narrow.min_subnormal or 0) / 2)}, becomes zero. In so
deep a network the first weights shrink the activations on their way forward and the errors on their
way back, so that every layer's gradients are tiny, and each node's are divided by
{demo.settings.nodes} besides. In the first epoch {_between(shares)} of a layer's weight gradients
would vanish. {_stuck(plain)}</p>
<p>APS looks at every layer by itself. With e = ⌈log₂(max |g| · nodes)⌉, which all nodes agree on by
exchanging one byte for each layer, it multiplies the layer by 2<sup>emax − e</sup>, so that even
the sum of {demo.settings.nodes} largest values just fits, and divides the sum by the same power
of two. Such a factor changes no mantissa bit: it only moves the layer to where the format has its
values.</p>
{
        _figure(
            figures.gradient_ranges(fp32, ("e4m3", "e3m0")),
            "Gradients of the FP32 run in its first epoch, all nodes and steps. On the right each "
            "step's layer is moved as APS would move it. Whatever lies left of a band is lost in "
            "that format.",
        )
    }
{table}
</section>"""


def _between(shares: Sequence[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"


def _stuck(plain: Run) -> str:
    if plain.accuracy > 0.5:
        return "Enough of them remain here for the network to learn."
    return (
        "The network never gets going: with nearly all updates zero, it stays about as good as "
        f"guessing ({plain.accuracy:.3f}) for all {len(plain.curve)} epochs."
    )


def _search(demo: Demo) -> str:
    plain, best, aps = (_find(demo, *key) for key in _KEYS[1:4])
    tried = demo.settings.search_exponents
    usable = [run for run in demo.search if run.accuracy >= 0.95 * best.accuracy]
    diverged = [int(math.log2(run.loss_scale)) for run in demo.search if run.diverged]
    limit = (
        f" At {_powers(diverged)} sums overflowed, and the weights became infinite or NaN."
        if diverged
        else ""
    )
    return f"""<section>
<h2>The rival: one constant loss scale</h2>
<p>Loss scaling multiplies all layers by one constant. It works too, if one finds it:
{_powers(tried)} were tried for (4,3), each in a training run of its own, and the table's row
is the one with the best accuracy on the very images that are held out, which favours it.
{len(usable)} of {len(tried)} come within 5 % of the best, {_power(best.loss_scale)} with
{best.accuracy:.3f}.{limit} APS reached {aps.accuracy:.3f} at the first try, with nothing to
search; and it follows the gradients as they change during training.</p>
{_figure(figures.loss_scale_search(demo.search, aps, plain), "Every point is a training run.")}
</section>"""


def _when(demo: Demo) -> str:
    deep, shallow = _find(demo, *_KEYS[0]), demo.shallow[0]
    narrow, wide = formats.format("e4m3"), formats.format("e5m2")
    depth = demo.shallow[0].depth
    rows = [
        (f"{run.depth}", run.label, f"{run.accuracy:.3f}", percent(_first_epoch_lost(fp32, run)))
        for fp32, runs in ((deep, demo.table[:2]), (shallow, demo.shallow))
        for run in runs
    ]
    table = _table(
        ("Hidden layers", "Gradients", "Accuracy", "Below the format in the first epoch"),
        rows,
        numbers=(2, 3),
        caption="The same training with fewer layers",
    )
    kept = [percent(1 - _first_epoch_lost(fp32, demo.shallow[1])) for fp32 in (shallow, deep)]
    verdict = (
        f"<strong>With {depth} hidden layers (4,3) needs no APS</strong>: it reaches "
        f"{demo.shallow[1].accuracy:.3f} by itself, FP32 {demo.shallow[0].accuracy:.3f}."
        if demo.shallow[1].accuracy > 0.9 * demo.shallow[0].accuracy
        else f"With {depth} hidden layers (4,3) reaches {demo.shallow[1].accuracy:.3f}, "
        f"FP32 {demo.shallow[0].accuracy:.3f}."
    )
    return f"""<section>
<h2>When a format fails, and when it does not</h2>
<p>{verdict} Its
gradients pass fewer layers and stay larger: of the FP32 run's gradients (weights and biases)
in the first epoch (4,3) would keep {kept[0]}, the largest ones, against
{kept[1]} with {deep.depth} hidden layers.</p>
{table}
<ul>
<li>A format fails by <em>underflow</em> where a layer's gradients lie below half its least positive
value. What counts is the range, so exponent bits: (5,2) has as many bits as (4,3) and reaches
down to {_power(wide.min_subnormal)} instead of {_power(narrow.min_subnormal)}.</li>
<li>Depth, more nodes (each loss is divided by their number) and a good fit all make gradients
smaller. Look at the figure for <em>your</em> layers, early in training.</li>
<li>It fails by <em>overflow</em> where the sum leaves the range, as with too large a loss scale.
APS cannot overflow with finite gradients at 3 or more exponent bits and rounding to nearest
even.</li>
<li>APS cannot add mantissa bits. (3,0) with APS still rounds every partial sum to a power of two,
and pays for it in accuracy.</li>
</ul>
</section>"""


def _first_epoch_lost(fp32: Run, run: Run) -> float:
    if run.format == "fp32":
        return 0.0
    wire = formats.format(run.format)
    counts: dict[str, int] = {}
    for layer in fp32.layers:
        for exponent, number in layer.exponents["1"].items():
            counts[exponent] = counts.get(exponent, 0) + number
    return figures.share_lost(counts, wire)


def _roundoff(demo: Demo) -> str:
    study = demo.roundoff
    wire = formats.format(study.format)
    main = study.series[0].rows
    least = min(main, key=lambda row: row.error)
    rows = []
    for index, row in enumerate(main):
        others = [series.rows[index] for series in study.series[1:]]
        rows.append(
            (
                f"{row.group_size}" + (" (no groups)" if row.group_size == study.nodes else ""),
                f"{row.error:.2%}".replace("%", " %"),
                f"{row.relative_rms:.2%}".replace("%", " %"),
                *(f"{other.error:.2%}".replace("%", " %") for other in others),
                f"{row.steps}",
            )
        )
    table = _table(
        (
            "Group size",
            "Eq. 5 error",
            "Relative RMS",
            *(f"Eq. 5, {series.label}" for series in study.series[1:]),
            "Steps",
        ),
        rows,
        numbers=tuple(range(1, 4 + len(study.series) - 1)),
        best={main.index(least)},
        wrap=True,
        caption=f"({wire.exp},{wire.man}) with APS, {study.nodes} nodes, ring across groups",
    )
    zeros = main[0].zero_references
    return f"""<section>
<h2>Round-off by group size</h2>
<p>In a sum over {study.nodes} nodes the running sum grows until a contribution is smaller than half
its last digit and has no effect. Summing in groups, then the groups' sums, keeps both parts short:
groups of about √{study.nodes} = {math.sqrt(study.nodes):.3g} should lose least, as in the APS
paper's Table 9. Here it is {least.group_size}. Steps of the hierarchical all-reduce: 4(k − 1) +
2(p/k − 1) for p nodes in groups of k, against 2(p − 1) for one ring.</p>
{
        _figure(
            figures.roundoff_by_group_size(study),
            f"Gradients of the FP32 model after {demo.settings.roundoff_epochs} epochs, each "
            "virtual node's on its own micro-batch.",
        )
    }
{table}
<p class="note">Eq. 5 is the mean of |h − l| / |h| over all values whose reference h, the binary64
sum of the contributions before cast and scaling, is not zero; {zeros:,} of {main[0].count:,}
references are zero and left out. Values near zero weigh most in it, so the relative RMS stands
beside it.</p>
</section>"""


def _again(demo: Demo) -> str:
    settings = demo.settings
    runs = "\n".join(f"cpd train {run.options}" for run in [*demo.table, *demo.shallow])
    hashes = _table(
        ("Run", "Hidden layers", "Weights"),
        [
            (run.label, str(run.depth), f"<code>{escape(run.weights)}</code>")
            for run in [*demo.table, *demo.shallow]
        ],
        numbers=(1,),
        raw=(2,),
    )
    versions = ", ".join(f"{name} {number}" for name, number in settings.versions.items())
    return f"""<section>
<h2>Do it again</h2>
<p>Every row is one command, and prints the same weights hash again for any
<code>CPD_NUM_THREADS</code>. CPD's own arithmetic is the same everywhere; PyTorch's forward and
backward kernels are not: on another type of CPU expect other hashes and slightly other
accuracies.</p>
<pre><code>{escape(runs)}
cpd roundoff {escape(demo.roundoff.options)}</code></pre>
<details><summary>Weights hashes</summary>
{hashes}
</details>
<p class="note">Measured in {settings.seconds:.0f} s with {escape(versions)} on
{escape(settings.machine)} (torch kernels: {escape(settings.torch_cpu_capability)}).</p>
</section>"""


# ---- pieces -----------------------------------------------------------------------------------

# (format, APS, whether a loss scale is set) of the table's rows
_KEYS: tuple[tuple[str, bool, bool], ...] = (
    ("fp32", False, False),
    ("e4m3", False, False),
    ("e4m3", False, True),
    ("e4m3", True, False),
    ("e3m0", False, False),
    ("e3m0", True, False),
)


def _find(demo: Demo, format: str, aps: bool, scaled: bool) -> Run:
    for run in demo.table:
        if (run.format, bool(run.aps), run.loss_scale != 1) == (format, aps, scaled):
            return run
    raise ValueError(f"the demo has no row {format}, APS {'on' if aps else 'off'}")


def _share(run: Run, name: str) -> float:
    layer = next(layer for layer in run.layers if layer.name == name)
    return layer.underflowed / layer.nonzero if layer.nonzero else 0.0


def _bits(run: Run) -> str:
    return str(formats.format(run.format).bits)


def _kind(run: Run, baseline: Run) -> str:
    return "good" if run.accuracy > 0.8 * baseline.accuracy else "bad"


def _card(accuracy: float, text: str, kind: str = "") -> str:
    return f'<div class="card {kind}"><b>{accuracy:.3f}</b><span>{escape(text)}</span></div>'


def _power(value: float | None) -> str:
    """A power of two as 2⁻⁹, any other value in decimal."""
    if value is None:
        return "none"
    mantissa, exponent = math.frexp(value)
    return power_of_two(exponent - 1) if mantissa == 0.5 else f"{value:g}"


def _powers(exponents: Sequence[int]) -> str:
    """Powers of two, ascending; three or more in a row are shortened: '2¹, 2⁴ … 2⁹'."""
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


def _figure(svg: str, caption: str) -> str:
    return f"<figure>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    numbers: Sequence[int] = (),
    best: set[int] | None = None,
    caption: str = "",
    raw: Sequence[int] = (),
    wrap: bool = False,
) -> str:
    """A table; the first column is each row's heading, `numbers` columns are set flush right."""
    style = ' style="white-space: normal"' if wrap else ""

    def cell(tag: str, column: int, text: str) -> str:
        kind = ' class="number"' if column in numbers else ""
        scope = ' scope="row"' if tag == "th" else ""
        return f"<{tag}{scope}{kind}>{text if column in raw else escape(text)}</{tag}>"

    body = "\n".join(
        f"<tr{' class=best' if index in (best or ()) else ''}>"
        + "".join(cell("td" if i else "th", i, text) for i, text in enumerate(row))
        + "</tr>"
        for index, row in enumerate(rows)
    )
    columns = "".join(
        f'<th scope="col"{style}{" class=number" if i in numbers else ""}>{escape(name)}</th>'
        for i, name in enumerate(head)
    )
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    return (
        f'<div class="scroll"><table>{title}<thead><tr>{columns}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )
