# SPDX-License-Identifier: Apache-2.0
"""Tests the callbacks for Hugging Face's and Lightning's trainers.

A training writes what a tracker measures, leaves the model unchanged, and imports nothing unused.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import cpd  # noqa: E402


def test_importing_imports_no_trainer():
    program = (
        "import sys, cpd; cpd.track.Tracker; "
        "print([n for n in ('transformers', 'lightning', 'wandb', 'accelerate', 'tensorboard') "
        "if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def data() -> list[dict[str, torch.Tensor]]:
    draw = torch.Generator().manual_seed(0)
    return [{"x": torch.randn(8, generator=draw), "labels": torch.tensor(n % 3)} for n in range(32)]


class Classifier(nn.Module):
    """A model that transformers' Trainer accepts: takes keywords, returns a loss and logits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.layers(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def test_hugging_face(tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    model = Classifier()
    cpd.convert(model, "mxfp8")
    reported = []

    class Report(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **more):
            reported.append((state.global_step, logs))

    arguments = transformers.TrainingArguments(
        str(tmp_path), max_steps=4, per_device_train_batch_size=4, report_to="none",
        use_cpu=True, disable_tqdm=True, save_strategy="no", gradient_accumulation_steps=2,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=data(), callbacks=[Report()],
    )  # fmt: skip
    callback = cpd.track.hugging_face(trainer, every=4, what_if=["nvfp4"])
    trainer.train()
    assert callback.tracker is None
    assert not model._forward_pre_hooks
    history = [one for one in trainer.state.log_history if "cpd/layers.0/weight/amax" in one]
    assert [one["step"] for one in history] == [1, 3]  # calls 0 and 4 of two calls a step
    assert history[0]["cpd/coverage/share"] == 1.0
    assert history[0]["cpd/layers.0/weight/own/sqnr"] > history[0]["cpd/layers.0/weight/nvfp4/sqnr"]
    logged = [(step, logs) for step, logs in reported if "cpd/layers.0/weight/amax" in logs]
    assert [step for step, _ in logged] == [1, 3]
    assert "cpd/" not in capsys.readouterr().out
    with pytest.raises(TypeError, match=r"trainer must be a transformers.Trainer, got int"):
        cpd.track.hugging_face(3)


def test_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    import csv

    from lightning.pytorch.loggers import CSVLogger

    class Whole(lightning.LightningModule):
        def __init__(self, children):
            super().__init__()
            for name in children:
                setattr(self, name, Classifier())
            cpd.convert(self.model, "mxfp8")

        def training_step(self, batch, number):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def fit(whole, callback):
        logger = CSVLogger(tmp_path, name=str(len(list(tmp_path.iterdir()))))
        trainer = lightning.Trainer(
            max_epochs=1, accelerator="cpu", logger=logger, callbacks=[callback],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(whole, torch.utils.data.DataLoader(data(), batch_size=8))
        with open(f"{logger.log_dir}/metrics.csv") as file:
            return [row for row in csv.DictReader(file) if row["layers.0/weight/amax"]]

    whole = Whole(["model"])
    callback = cpd.track.lightning(every=2, what_if=["nvfp4"])
    rows = fit(whole, callback)
    assert [int(row["step"]) for row in rows] == [1, 3]
    assert float(rows[0]["coverage/share"]) == 1.0
    assert callback.tracker is None
    assert not whole.model._forward_pre_hooks
    two = Whole(["model", "teacher"])
    with pytest.raises(ValueError, match="that training_step calls, of model, teacher, got ''"):
        fit(two, cpd.track.lightning())
    assert len(fit(two, cpd.track.lightning("model", every=2))) == 2
    with pytest.raises(ValueError, match="got 'modle'"):
        fit(two, cpd.track.lightning("modle"))
