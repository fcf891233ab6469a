# SPDX-License-Identifier: Apache-2.0
"""Compares a Llama model that Lightning trains, and that converts itself by `cpd.convert(self)`,
with the same training by plain calls."""

from __future__ import annotations

import functools
import logging

import pytest

import cpd

torch = pytest.importorskip("torch")

from tensors import same  # noqa: E402

VOCABULARY, LENGTH, BATCH = 128, 32, 8


def llama():
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(config)


def batches(steps):
    """Returns sequences in which each word is the previous one plus three. One word in five is
    random."""
    generator = torch.Generator().manual_seed(1)
    first = torch.randint(VOCABULARY, (steps, BATCH, 1), generator=generator)
    words = (first + 3 * torch.arange(LENGTH)) % VOCABULARY
    noise = torch.rand(words.shape, generator=generator) < 0.2
    return torch.where(noise, torch.randint(VOCABULARY, words.shape, generator=generator), words)


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=3e-3)


@functools.cache
def whole_class():
    """Returns a LightningModule that converts itself. Lightning calls its training step, so nobody
    calls the converted module itself."""
    lightning = pytest.importorskip("lightning")  # takes seconds

    class Whole(lightning.LightningModule):
        def __init__(self, recipe, parts):
            super().__init__()
            self.net = llama()
            self.parts = parts
            self.losses = []
            self.report = cpd.convert(self, recipe)

        def training_step(self, words, number):
            if self.parts:
                hidden = self.net.model(input_ids=words).last_hidden_state
                logits = self.net.lm_head(hidden)
                loss = self.net.loss_function(logits, words, VOCABULARY)
            else:
                loss = self.net(input_ids=words, labels=words).loss
            self.losses.append(loss.item())
            return loss

        def configure_optimizers(self):
            return optimizer_of(self)

    return Whole


def fit(recipe, steps, parts=False):
    lightning = pytest.importorskip("lightning")
    whole = whole_class()(recipe, parts)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, devices=1,
    )  # fmt: skip
    trainer.fit(whole, torch.utils.data.DataLoader(batches(steps), batch_size=None))
    return whole


def plain(recipe, steps):
    """Trains a model without Lightning; converts it first if there is a recipe. Returns the model
    and the losses."""
    model = llama()
    if recipe is not None:
        cpd.convert(model, recipe, coverage=False)
    optimizer, losses = optimizer_of(model), []
    for words in batches(steps):
        loss = model(input_ids=words, labels=words).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("recipe", ["te-delayed", "nvfp4"])
def test_the_bits_of_plain_calls(recipe, parts):
    whole = fit(recipe, 4, parts)
    model, losses = plain(recipe, 4)
    assert whole.cpd_clock == model.cpd_clock == 4
    assert whole.losses == losses
    assert same(whole.net.lm_head.weight, model.lm_head.weight)
    coverage = whole.report.coverage()
    assert coverage.share > 0.5
    assert {p.backward for p in coverage.products} == {False, True}


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
def test_it_learns_as_the_model_that_is_not_converted():
    whole, (_, losses) = fit("te-delayed", 150), plain(None, 150)
    assert abs(whole.losses[-1] - losses[-1]) < 0.05 * losses[-1]
    assert whole.losses[-1] < 0.7 * whole.losses[0]
