"""Tiny random models of Hugging Face Transformers, their inputs, and exact heads in float64."""

import copy

import torch
import transformers
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

import headwise.hf
import oracle

VOCABULARY = 97
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 128, "max_position_embeddings": 256, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = TEXT | {"num_key_value_heads": 2, "head_dim": 16}
WINDOWED = GROUPED | {"sliding_window": 8}
TRANSLATION = {
    "vocab_size": VOCABULARY, "d_model": 64, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128,
    "decoder_ffn_dim": 128, "max_position_embeddings": 256, "dropout": 0, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}  # fmt: skip
IMAGES = {
    "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
# Family: class of the model, settings of its config.
FAMILIES = {
    "bert": ("BertForMaskedLM", TEXT),
    "roberta": ("RobertaForMaskedLM", TEXT),
    "modernbert": (
        "ModernBertForMaskedLM",
        TEXT | {"local_attention": 16, "cls_token_id": 1, "sep_token_id": 2},
    ),
    "gpt2": ("GPT2LMHeadModel", TEXT),
    "llama": ("LlamaForCausalLM", GROUPED),
    "qwen3": ("Qwen3ForCausalLM", GROUPED),
    "mistral": ("MistralForCausalLM", WINDOWED),
    "gemma2": ("Gemma2ForCausalLM", WINDOWED | {"query_pre_attn_scalar": 16}),
    "gpt_oss": (
        "GptOssForCausalLM",
        WINDOWED
        | {"num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"},
    ),
    "marian": ("MarianMTModel", TRANSLATION),
    "bart": ("BartForConditionalGeneration", TRANSLATION),
    "t5": (
        "T5ForConditionalGeneration",
        {
            "vocab_size": VOCABULARY, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2,
            "num_heads": 4, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1,
        },
    ),
    "vit": ("ViTForImageClassification", IMAGES | {"num_labels": 5}),
    "whisper": (
        "WhisperForConditionalGeneration",
        TRANSLATION
        | {"num_mel_bins": 8, "max_source_positions": 12, "max_target_positions": 64,
           "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    "clip": ("CLIPModel", {"text_config": TEXT, "vision_config": IMAGES, "projection_dim": 32}),
}  # fmt: skip
ENCODERS = ("bert", "roberta", "modernbert")
DECODERS = ("gpt2", "llama", "qwen3", "mistral", "gemma2", "gpt_oss")
TRANSLATORS = ("marian", "bart", "t5")


def make(family, **settings):
    """Return a random model in evaluation mode, with heads that are far from uniform."""
    torch.manual_seed(0)
    name, own = FAMILIES[family]
    kind = getattr(transformers, name)
    model = kind(kind.config_class(**copy.deepcopy(own), **settings)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 2 and "embed" not in parameter_name and parameter.std() < 0.1:
                parameter.mul_(5.0)
    return model


def chosen_attention(model):
    """The name of the attention function that Transformers calls."""
    return model.config._attn_implementation


def inputs(family, padding="", n=24):
    """Return a batch of 3 with `n` positions; with 5 and 10 of padding on the `padding` side."""
    generator = torch.Generator().manual_seed(1)
    batch = {}
    if family in ("vit", "clip"):
        batch["pixel_values"] = torch.randn(3, 3, 32, 32, generator=generator)
    if family == "whisper":
        batch["input_features"] = torch.randn(3, 8, 24, generator=generator)
    if family not in ("vit", "whisper"):
        batch["input_ids"] = torch.randint(3, VOCABULARY, (3, n), generator=generator)
        mask = torch.ones(3, n, dtype=torch.long)
        for row, n_padding in enumerate((0, 5, 10) if padding else ()):
            mask[row, n - n_padding :] = 0
        batch["attention_mask"] = mask = mask.flip(1) if padding == "left" else mask
        batch["input_ids"] *= mask
    if family in (*TRANSLATORS, "whisper"):
        batch["decoder_input_ids"] = torch.randint(3, VOCABULARY, (3, n // 2), generator=generator)
    return batch


def output(family, model, batch, **options):
    """Return what the model predicts, 0 where a position is padding."""
    result = model(**batch, **options)
    if family == "clip":
        return torch.cat([result.text_embeds, result.image_embeds])
    if family in ENCODERS + DECODERS:
        return result.logits * batch["attention_mask"][:, :, None]
    return result.logits


def draw_alpha(model):
    """Draw α of every head, in [1, 2], and 1 for the first; return them by module."""
    generator = torch.Generator().manual_seed(2)
    drawn = {}
    for name, module in model.named_modules():
        if hasattr(module, "head_alpha"):
            alpha = 1 + torch.rand(module.head_alpha.n_heads, generator=generator)
            alpha[0] = 1
            with torch.no_grad():
                module.head_alpha.bias.copy_((alpha - 1) / module.head_alpha.lr_factor)
            drawn[name] = module.head_alpha().detach()
    return drawn


def sparse(family, **settings):
    """Return a sparse model with drawn α."""
    model = headwise.hf.sparsify(make(family, **settings))
    draw_alpha(model)
    return model


def reference(dense, alpha):
    """Return a float64 copy of a dense model with explicit weights, and its α."""
    AttentionInterface.register("reference", _reference_attention)
    AttentionMaskInterface.register("reference", eager_mask)
    model = copy.deepcopy(dense).double()
    model.set_attn_implementation("reference")
    leaves = {name: values.double().requires_grad_() for name, values in alpha.items()}
    for name, values in leaves.items():
        model.get_submodule(name).reference_alpha = values
    return model, leaves


def _reference_attention(
    module, query, key, value, attention_mask,
    scaling = None, softcap = None, s_aux = None,
    position_bias = None, **kwargs
):  # fmt: skip
    assert query.dtype is torch.float64
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], 1) for x in (key, value))
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if position_bias is not None:
        scores = scores + position_bias
    visible = torch.ones_like(scores, dtype=torch.bool)
    if attention_mask is not None:
        visible = visible & (attention_mask > -1e30)
    if s_aux is not None:
        sinks = s_aux[None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
        visible = torch.cat([visible, torch.ones_like(sinks, dtype=torch.bool)], -1)
    alpha = module.reference_alpha[:, None, None]
    weights = oracle.weights(scores, alpha, visible)[..., : key.shape[2]]
    return (weights @ value).transpose(1, 2), weights
