# SPDX-License-Identifier: Apache-2.0
"""Trains in MXFP8 with Hugging Face's Trainer. One line makes the Trainer log the share of the
model that ran emulated, the ranges of tensors, and the errors that NVFP4 would cause. The example
downloads nothing: a small Llama learns the bytes of a README.

Run: python examples/28_trainer.py     (needs `pip install transformers accelerate`)
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

import cpd

LENGTH = 32
ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="transformers.Trainer with cpd.track.")
    parser.add_argument("--steps", type=int, default=40)
    steps = parser.parse_args(arguments).steps
    try:
        from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
    except ImportError as error:
        print(f"{error}: pip install transformers accelerate")
        return 0
    torch.manual_seed(0)
    sizes = {"vocab_size": 256, "hidden_size": 32, "intermediate_size": 64}
    depth = {"num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": None}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **depth, **ends))
    cpd.convert(model, "mxfp8", rules=[("lm_head", None)])

    text = torch.frombuffer(bytearray((ROOT / "README.md").read_bytes()), dtype=torch.uint8).long()
    runs = [text[n : n + LENGTH] for n in range(0, len(text) - LENGTH, LENGTH)]
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model,
            TrainingArguments(
                folder,
                max_steps=steps,
                per_device_train_batch_size=8,
                learning_rate=3e-3,
                logging_steps=max(1, steps // 4),
                report_to="none",  # or "tensorboard", "wandb": the numbers go there as well
                use_cpu=not torch.cuda.is_available(),
                disable_tqdm=True,
            ),
            train_dataset=[{"input_ids": tokens, "labels": tokens} for tokens in runs],
        )
        cpd.track.hugging_face(trainer, every=20, what_if=["nvfp4"])
        trainer.train()

    for entry in trainer.state.log_history:
        if "cpd/coverage/share" in entry:
            print(f"coverage {entry['cpd/coverage/share']:.1%}")
        for name in ("own", "nvfp4"):
            tag = f"cpd/model.layers.0.mlp.gate_proj/gradient/{name}/sqnr"
            if tag in entry:
                print(f"step {entry['step']:3d}  gradients by {name}: {entry[tag]:.1f} dB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
