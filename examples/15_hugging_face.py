# SPDX-License-Identifier: Apache-2.0
"""Trains a model of Hugging Face's transformers with accelerate in MXFP8, and measures the errors
that NVFP4 would cause. It downloads nothing: a small Llama learns the bytes of a README.

Run: python examples/15_hugging_face.py     (needs `pip install transformers accelerate`)
Draws: out/hugging_face.png. If tensorboard is installed, also logs to out/accelerate.
"""

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import torch

import cpd

BATCH, LENGTH = 8, 64
ROOT = Path(__file__).parents[1]


def llama() -> torch.nn.Module:
    """Returns a Llama of two blocks of width 64 whose tokens are bytes."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: torch.nn.Module = LlamaForCausalLM(config)
    return model


def batches(steps: int) -> torch.Tensor:
    """Returns random excerpts of the README, of shape (steps, batch, length)."""
    text = torch.frombuffer(bytearray((ROOT / "README.md").read_bytes()), dtype=torch.uint8).long()
    starts = torch.randint(len(text) - LENGTH, (steps, BATCH, 1))
    return text[starts + torch.arange(LENGTH)]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="A Llama, accelerate and cpd.track.")
    parser.add_argument("--steps", type=int, default=60)
    steps = parser.parse_args(arguments).steps
    try:
        from accelerate import Accelerator

        model = llama()
    except ImportError as error:
        print(f"{error}: pip install transformers accelerate")
        return 0
    print(cpd.convert(model, cpd.Recipe("mxfp8"), rules=[("lm_head", None)]))

    logs = ROOT / "out" / "accelerate"
    log_with = "tensorboard" if find_spec("tensorboard") else None
    accelerator = Accelerator(log_with=log_with, project_dir=logs)
    accelerator.init_trackers("llama")
    adamw = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer = accelerator.prepare(model, adamw)
    with cpd.track.Tracker(model, accelerator, every=20, what_if=("nvfp4",)) as track:
        for step, tokens in enumerate(batches(steps).to(accelerator.device)):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            track.step()
            if step % 20 == 0 or step == steps - 1:
                print(f"step {step:3d}  loss {loss.item():.3f}")

    accelerator.end_training()
    assert track.watch is not None
    rows = [row for row in track.watch.last() if row.layer.endswith("layers.1.mlp.down_proj")]
    for row in rows:
        if row.sqnr is not None:
            print(f"{row.role:10s} {row.judge:18s} {row.sqnr:6.1f} dB, {row.underflow:.1f} % lost")
    picture = ROOT / "out" / "hugging_face.png"
    picture.parent.mkdir(exist_ok=True)
    track.watch.plot(picture)
    print(f"drawn: {picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
