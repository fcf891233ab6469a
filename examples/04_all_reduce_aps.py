# SPDX-License-Identifier: Apache-2.0
"""Sums the gradients of eight ranks in an 8-bit format, with and without scaling.

The format (4,3) has 4 exponent bits and 3 mantissa bits. One layer has tiny values, and the other
layer has large values. The example compares the errors of three all-reduces: without scaling, with
one loss scale for both layers, and with APS (a power-of-two scale for each layer).

Run: python examples/04_all_reduce_aps.py
"""

import torch

import cpd


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    scales = {"tiny": 2.0**-14, "large": 2.0**6}
    per_rank = [
        [torch.randn(1000, generator=generator) * scale for scale in scales.values()]
        for _ in range(8)
    ]
    ways = {
        "as it is": cpd.Reduce("e4m3"),
        "loss scale 2^12": cpd.Reduce("e4m3", loss_scale=2.0**12),
        "APS": cpd.Reduce("e4m3", aps=True),
    }
    print("(4,3), 8 nodes     layer   shift   lost to zero   overflowed   relative RMS")
    for name, spec in ways.items():
        sums, reports = cpd.simulate_all_reduce(per_rank, spec, report=True)
        for index, layer in enumerate(scales):
            exact = sum(rank[index].double() for rank in per_rank)
            rms = ((sums[index] - exact).norm() / exact.norm()).item()
            report = reports[index]
            print(
                f"{name:17}  {layer:>6}  {report.shift:6}  {report.underflowed:13}  "
                f"{report.overflowed:11}   {rms:12.2%}"
            )


if __name__ == "__main__":
    main()
