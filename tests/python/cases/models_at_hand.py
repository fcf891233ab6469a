# SPDX-License-Identifier: Apache-2.0
"""Small models of transformers and timm with random weights, and the arguments with which to call
them.

timm imports torchvision for images and datasets that the tests do not use. Where torchvision is not
installed, a placeholder module provides an empty class for every name.
"""

import contextlib
import importlib.util
import sys
import types

import pytest
import torch

LENGTH = 16
VOCABULARY = 96


class _Constants(type):
    """A metaclass of placeholder classes, such as enums: an attribute's value is its name."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Placeholder(types.ModuleType):
    """A placeholder module: each attribute is an empty class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if f"{self.__name__}.{name}" in sys.modules:
            return sys.modules[f"{self.__name__}.{name}"]
        made = _Constants(name, (), {})
        setattr(self, name, made)
        return made


_TORCHVISION = ("", ".ops", ".ops.misc", ".transforms", ".transforms.functional", ".datasets",
                ".datasets.folder", ".models", ".models.feature_extraction")  # fmt: skip


@contextlib.contextmanager
def _without_torchvision():
    """Replaces torchvision by placeholders while a package is imported that needs torchvision's
    classes in isinstance tests only."""
    if importlib.util.find_spec("torchvision") is not None:
        yield
        return
    names = [f"torchvision{name}" for name in _TORCHVISION]
    for name in names:
        sys.modules[name] = _Placeholder(name)
    try:
        yield
    finally:
        for name in names:
            sys.modules.pop(name, None)


def transformers():
    return pytest.importorskip("transformers")


def timm():
    with _without_torchvision():
        return pytest.importorskip("timm")


# ---- transformers --------------------------------------------------------------------------------

_DECODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
_EXPERTS = {"num_experts_per_tok": 2, "output_router_logits": False}
_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}

TRANSFORMERS = {
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 64,
         "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1,
         "eos_token_id": 2},
    ),
    "llama": ("LlamaForCausalLM", _DECODER),
    "mistral": ("MistralForCausalLM", {**_DECODER, "sliding_window": 8}),
    "qwen2": ("Qwen2ForCausalLM", _DECODER),
    "qwen3": ("Qwen3ForCausalLM", {**_DECODER, "head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", {**_DECODER, "head_dim": 16, "sliding_window": 8}),
    "phi3": ("Phi3ForCausalLM", {**_DECODER, "resid_pdrop": 0.0}),
    "opt": (
        "OPTForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 64, "word_embed_proj_dim": 64,
         "dropout": 0.0, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "mixtral": ("MixtralForCausalLM", {**_DECODER, **_EXPERTS, "num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3MoeForCausalLM",
        {**_DECODER, **_EXPERTS, "head_dim": 16, "num_experts": 4, "moe_intermediate_size": 32},
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**_DECODER, **_EXPERTS, "head_dim": 16, "num_local_experts": 4, "sliding_window": 8},
    ),
    "mamba": (
        "MambaForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "mamba2": (
        "Mamba2ForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "state_size": 16, "num_heads": 8,
         "head_dim": 16, "n_groups": 2, "num_hidden_layers": 2, "chunk_size": 8,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "minimax": (
        "MiniMaxForCausalLM",
        {**_DECODER, **_EXPERTS, "head_dim": 16, "num_local_experts": 4, "block_size": 8,
         "layer_types": ["linear_attention", "full_attention"]},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {**_DECODER, "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16,
         "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 4,
         "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "moe_intermediate_size": 32,
         "first_k_dense_replace": 1, "n_shared_experts": 1},
    ),
    "falcon": (
        "FalconForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2,
         "num_attention_heads": 4, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "bloom": (
        "BloomForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4,
         "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt_neox": (
        "GPTNeoXForCausalLM",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
         "num_hidden_layers": 2, "num_attention_heads": 4, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "bert": ("BertForMaskedLM", _ENCODER),
    "roberta": ("RobertaForMaskedLM", {**_ENCODER, "max_position_embeddings": 66}),
    "t5": (
        "T5ForConditionalGeneration",
        {"vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
         "num_heads": 4, "dropout_rate": 0.0, "pad_token_id": 0, "decoder_start_token_id": 0},
    ),
    "vit": ("ViTForImageClassification", _VISION),
}  # fmt: skip
"""The model class and the configuration, by type of model."""

TIMM = {
    "resnet50": {},
    "vit_tiny_patch16_224": {"img_size": 64, "depth": 2},
    "convnext_atto": {"depths": (1, 1, 2, 1)},
    "nf_resnet26": {},
    "mixer_s32_224": {"img_size": 64},
    "efficientnet_b0": {},
}
"""Options of timm's create_model, by the name of the model."""


def of_transformers(name, **options):
    """Returns a transformers model in training mode, and the keyword arguments to call it with. The
    model's result contains the loss."""
    package = transformers()
    kind, said = TRANSFORMERS[name]
    torch.manual_seed(0)
    config = package.AutoConfig.for_model(name, **{**said, **options})
    model = getattr(package, kind)(config).train()
    if "Image" in kind:
        return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}
    ids = torch.randint(3, VOCABULARY, (2, LENGTH))
    return model, {"input_ids": ids, "labels": ids}


def of_timm(name):
    """Returns a timm model in training mode, and the keyword arguments to call it with."""
    package = timm()
    torch.manual_seed(0)
    model = package.create_model(name, num_classes=8, **TIMM[name]).train()
    return model, {"x": torch.randn(2, 3, 64, 64)}


def loss_of(result):
    """Returns the loss of a model's result: the loss that the result contains, or the mean
    square."""
    return result.loss if hasattr(result, "loss") else result.square().mean()
