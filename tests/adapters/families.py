"""Tiny models of five families of Hugging Face, and adapters for them."""

import copy

import torch
import transformers as hf
from peft import LoraConfig

SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
TOKENS = 32


def llama():
    heads = {"num_key_value_heads": 1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.LlamaConfig(vocab_size=TOKENS, max_position_embeddings=32, **SMALL, **heads)
    return hf.LlamaForCausalLM(config), ["q_proj", "v_proj", "down_proj"]


def gpt2():
    drop = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.GPT2Config(vocab_size=TOKENS, n_positions=32, n_embd=16, n_layer=1, n_head=2, **drop)
    return hf.GPT2LMHeadModel(config), ["c_attn"]


def bert():
    config = hf.BertConfig(vocab_size=TOKENS, max_position_embeddings=32, **SMALL, **NO_DROPOUT)
    return hf.BertForSequenceClassification(config), ["query", "value"]


def t5():
    config = hf.T5Config(vocab_size=TOKENS, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2,
                         dropout_rate=0.0, decoder_start_token_id=0)  # fmt: skip
    return hf.T5ForConditionalGeneration(config), ["q", "v"]


def vit():
    config = hf.ViTConfig(image_size=8, patch_size=4, **SMALL, **NO_DROPOUT)
    return hf.ViTForImageClassification(config), ["q_proj", "v_proj"]


FAMILIES = {"llama": llama, "gpt2": gpt2, "bert": bert, "t5": t5, "vit": vit}


def make(name, dtype=torch.float64):
    """A base in evaluation mode, and the names of modules to adapt."""
    torch.manual_seed(0)
    base, targets = FAMILIES[name]()
    if hasattr(base.config, "use_cache"):
        base.config.use_cache = False
    return base.to(dtype).eval(), targets


def inputs(name, *shape, dtype=torch.float64, seed=0):
    """A batch of such a model: tensors `[*shape, ...]`."""
    generator = torch.Generator().manual_seed(seed)
    if name == "vit":
        return {"pixel_values": torch.randn(*shape, 3, 8, 8, generator=generator, dtype=dtype)}
    tokens = torch.randint(3, TOKENS, (*shape, 5), generator=generator)
    return (
        {"input_ids": tokens, "decoder_input_ids": tokens[..., :4]} if name == "t5" else {"input_ids": tokens}
    )


def configs(targets, ranks, **options):
    """One LoRA config for each rank, each with an alpha and a kind of scaling of its own."""
    return [
        LoraConfig(r=r, lora_alpha=2 * r + i, use_rslora=bool(i % 2), target_modules=targets, **options)
        for i, r in enumerate(ranks)
    ]


def share(base):
    """A copy of a model over the same tensors."""
    return copy.deepcopy(base, {id(p): p for p in base.parameters()})
