# SPDX-License-Identifier: Apache-2.0
"""Trains in MXFP8 with Lightning. A callback logs the share of the model that ran emulated, the
ranges of tensors, and the errors that NVFP4 would cause. The callback uses the Trainer's loggers:
here a file, out/lightning/.../metrics.csv.

Run: python examples/29_lightning.py     (needs `pip install lightning`)
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import cpd
from cpd_lab.train import digit_classifier, load_digits

ROOT = Path(__file__).parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Lightning with cpd.track.")
    parser.add_argument("--epochs", type=int, default=4)
    epochs = parser.parse_args(arguments).epochs
    try:
        import lightning
        from lightning.pytorch.loggers import CSVLogger
    except ImportError as error:
        print(f"{error}: pip install lightning")
        return 0

    class Digits(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model: nn.Module = digit_classifier(3, 64, seed=0)
            cpd.convert(self.model, "mxfp8")

        def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
            return cross_entropy(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    digits = load_digits()
    logger = CSVLogger(ROOT / "out", name="lightning")
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=logger,
        callbacks=[cpd.track.lightning(every=20, what_if=["nvfp4"])],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    torch.manual_seed(0)
    data = TensorDataset(digits.train_x, digits.train_y)
    trainer.fit(Digits(), DataLoader(data, batch_size=64, shuffle=True))
    with Path(logger.log_dir, "metrics.csv").open() as file:
        for row in csv.DictReader(file):
            own, other = (row[f"hidden2/gradient/{name}/sqnr"] for name in ("own", "nvfp4"))
            if own and other:
                print(f"step {row['step']}: gradients by mxfp8 {own} dB, by nvfp4 {other} dB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
