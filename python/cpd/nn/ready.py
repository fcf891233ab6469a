# SPDX-License-Identifier: Apache-2.0
"""`READY`: named recipes from papers and libraries, each with its source."""

from __future__ import annotations

from typing import Any, NamedTuple

_PAPER = "the paper"
_CODE = "the code of TransformerEngine 2.20"
_TE = "block=tensor scale=fp32 arithmetic=te"
_MX = "rule=rceil arithmetic=te"
_RHT = "transform=hadamard16:te"
_OF_64 = "e6m9 chunked chunk=64"
_MXFP4 = "mxfp4 transform=hadamard64:signs=0x9b3cf0a56d21e847 rounding=stochastic factor=0.75"
"""The cast of backward operands in arXiv 2502.20586, but the signs of the Hadamard transform are
fixed. The paper uses random signs."""


class Ready(NamedTuple):
    """A named recipe: a summary in one line, its origin, and its arguments of `Recipe`."""

    summary: str
    evidence: str
    source: str
    keys: dict[str, Any]

    def about(self) -> dict[str, str]:
        """Returns the recipe's entry in the result of `Recipe.named`."""
        return {"summary": self.summary, "source": self.source, "evidence": self.evidence}


def _operands(forward: str, backward: str) -> dict[str, Any]:
    return {"activation": forward, "weight": forward, "gradient": backward}


def _aps(wire: str, pair: str) -> Ready:
    return Ready(
        f"layers as torch's; gradients travel in {pair}, scaled by APS",
        _PAPER,
        f"APS: gradients scaled layer by layer and reduced in {wire}; layers compute as torch does",
        {"reduce": f"{wire} aps average"},
    )


def _short(name: str, **keys: Any) -> dict[str, Any]:
    """Returns the arguments of a recipe with all operands and results in one 16-bit format.

    Attention's products are included.
    """
    held = {**_operands(name, name), "output": name}
    return {**held, "attention": held, **keys}


READY: dict[str, Ready] = {
    "te-delayed": Ready(
        "E4M3 forward, E5M2 backward; a scale a tensor, of former steps",
        _CODE,
        "TransformerEngine 2.20 DelayedScaling: E4M3 forward, E5M2 backward, one scale a "
        "tensor, from the largest magnitude of the last 1024 steps",
        _operands(f"e4m3fn {_TE} history=1024", f"e5m2 {_TE} history=1024"),
    ),
    "te-current": Ready(
        "E4M3 forward, E5M2 backward; a scale a tensor, of its own",
        _CODE,
        "TransformerEngine 2.20 Float8CurrentScaling: E4M3 forward, E5M2 backward, one "
        "scale a tensor, from the tensor itself",
        _operands(f"e4m3fn {_TE}", f"e5m2 {_TE}"),
    ),
    "deepseek-v3": Ready(
        "E4M3 in blocks of 1 x 128, weights 128 x 128; head in fp32",
        _PAPER,
        "DeepSeek-V3, arXiv 2412.19437, section 3.3: E4M3 in blocks of 1 x 128, weights 128 "
        "x 128; embedding, output head, norms and attention high; moments in bf16",
        {
            **_operands("fp8-block", "fp8-block"),
            "weight": "fp8-block 128x128",
            "optimizer": "momentum=bf16 second_moment=bf16",
            "rules": [("last 1", None)],
        },
    ),
    "mxfp8": Ready(
        "MX E4M3 in blocks of 32, scales rounded up",
        f"{_PAPER}, and {_CODE}",
        "MXFP8 pretraining, arXiv 2506.08027, and TransformerEngine's MXFP8BlockScaling: "
        "E4M3 in blocks of 32, scales rounded up",
        _operands(f"mxfp8 {_MX}", f"mxfp8 {_MX}"),
    ),
    "mxfp8-hybrid": Ready(
        "MX E4M3 in blocks of 32, gradients E5M2",
        _CODE,
        "TransformerEngine 2.20 MXFP8BlockScaling with fp8_format=HYBRID: gradients E5M2",
        _operands(f"mxfp8 {_MX}", f"mxfp8-e5m2 {_MX}"),
    ),
    "nvfp4": Ready(
        "NVFP4, weights 16 x 16, gradients stochastic; last 15 % in bf16",
        f"{_PAPER}, and {_CODE}",
        "NVFP4 pretraining, arXiv 2509.25149, and TransformerEngine's NVFP4BlockScaling: "
        "2-D weights, gradients stochastic, a random Hadamard transform of the weight gradient's "
        "operands, the last 15 % of the layers in bf16",
        {
            **_operands("nvfp4", "nvfp4 rounding=stochastic"),
            "weight": "nvfp4 block=16x16",
            "grad_weight_activation": f"nvfp4 {_RHT}",
            "grad_weight_gradient": f"nvfp4 {_RHT} rounding=stochastic",
            "rules": [("last 15%", "bf16")],
        },
    ),
    "mxfp4-rht-sr": Ready(
        "bf16 forward; backward MXFP4, Hadamard, stochastic",
        _PAPER,
        "Training LLMs with MXFP4, arXiv 2502.20586: bf16 forward; backward MXFP4 of 3/4 x, "
        "stochastic, after a random Hadamard transform of 64",
        {
            "activation": "bf16",
            "weight": "bf16",
            "grad_input_gradient": _MXFP4,
            "grad_input_weight": _MXFP4,
            "grad_weight_activation": _MXFP4,
            "grad_weight_gradient": _MXFP4,
        },
    ),
    "ibm-fp8-2018": Ready(
        "(5,2) operands, sums in (6,9) by chunks of 64, as weights",
        _PAPER,
        "Wang et al., NeurIPS 2018, arXiv 1812.08011: operands (5,2), sums (6,9) in chunks "
        "of 64, weights and momenta (6,9), stochastic; first and last layer (6,9); loss scale 1000",
        {
            "format": "e5m2",
            "sums": _OF_64,
            "optimizer": "e6m9 update=stochastic momentum='e6m9 rounding=stochastic'",
            "loss_scale": 1000.0,
            "rules": [(selector, f"e6m9 sums='{_OF_64}'") for selector in ("first 1", "last 1")],
        },
    ),
    "aps-e4m3": _aps("e4m3", "(4,3)"),
    "aps-e3m0": _aps("e3m0", "(3,0)"),
    "bf16": Ready(
        "bf16 operands and results, fp32 sums and weights",
        "the type's definition",
        "bfloat16 operands and results, fp32 sums and master weights",
        _short("bf16"),
    ),
    "fp16": Ready(
        "fp16 operands and results, fp32 sums and weights, loss scaling",
        _PAPER,
        "Micikevicius et al., ICLR 2018, arXiv 1710.03740: fp16 operands and results, fp32 "
        "sums and master weights, loss scaling",
        _short("fp16", loss_scale="dynamic"),
    ),
}
"""Maps the names of recipes to the recipes."""
