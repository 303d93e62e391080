"""Models of Hugging Face transformers, tiny and randomly initialised; nothing is downloaded."""

import importlib.util

import torch
from torch import Tensor, nn

from .case import zoo_case


def token_ids(batch: int, length: int = 8) -> Tensor:
    """Token ids without the special ones (0, 1 and 2)."""
    return torch.randint(3, 40, (batch, length))


def ids_and_attention_mask(batch: int) -> tuple[tuple, dict]:
    """Token ids by keyword, padded with 0 at the end, with the mask that says so."""
    mask = (torch.arange(8) < torch.randint(4, 9, (batch, 1))).long()
    return (), {"input_ids": token_ids(batch) * mask, "attention_mask": mask}


def ids(batch: int) -> tuple[tuple, dict]:
    """Token ids by position."""
    return (token_ids(batch),), {}


def image(batch: int) -> tuple[tuple, dict]:
    """A small picture by keyword."""
    return (), {"pixel_values": torch.randn(batch, 3, 16, 16)}


def source_and_target_ids(batch: int) -> tuple[tuple, dict]:
    """Token ids for an encoder, and fewer for its decoder."""
    return (), {"input_ids": token_ids(batch), "decoder_input_ids": token_ids(batch, 6)}


def sound_and_ids(batch: int) -> tuple[tuple, dict]:
    """A spectrogram and the first words of its transcription."""
    return (torch.randn(batch, 8, 20), token_ids(batch, 6)), {}


def ids_and_image(batch: int) -> tuple[tuple, dict]:
    """Texts and as many pictures."""
    return (token_ids(batch), torch.randn(batch, 3, 16, 16)), {}


if importlib.util.find_spec("transformers"):
    import transformers as hf

    NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    INIT = {"initializer_range": 0.2}  # large enough for attention that is far from even
    SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    SIZES |= INIT
    TEXT = {"vocab_size": 40, "max_position_embeddings": 16}
    GATED = {**SIZES, **TEXT, "num_key_value_heads": 1, "head_dim": 8, "use_cache": False}
    PICTURE = {"image_size": 16, "patch_size": 4}

    @zoo_case("hf_bert", ids_and_attention_mask, "hf")
    def bert():
        """BertModel: gives its ModelOutput back, with the pooled first token."""
        return hf.BertModel(hf.BertConfig(**SIZES, **TEXT, **NO_DROPOUT, use_cache=False))

    @zoo_case("hf_distilbert", ids_and_attention_mask, "hf")
    class DistilBert(nn.Module):
        """DistilBertForSequenceClassification inside someone's module, which gives the probabilities."""

        def __init__(self):
            super().__init__()
            sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, **TEXT, **INIT}
            no_dropout = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
            config = hf.DistilBertConfig(**sizes, **no_dropout, num_labels=3)
            self.classifier = hf.DistilBertForSequenceClassification(config)

        def forward(self, input_ids, attention_mask=None):
            return self.classifier(input_ids=input_ids, attention_mask=attention_mask).logits.softmax(dim=-1)

    @zoo_case("hf_roberta", ids_and_attention_mask, "hf")
    def roberta():
        """RobertaForSequenceClassification: counts its positions from the tokens that are not padding."""
        config = hf.RobertaConfig(**SIZES, **TEXT, **NO_DROPOUT, num_labels=3, use_cache=False)
        return hf.RobertaForSequenceClassification(config)

    @zoo_case("hf_gpt2", ids, "hf")
    def gpt2():
        """GPT2LMHeadModel: tied embedding and head, Conv1D layers."""
        sizes = {"vocab_size": 40, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2, **INIT}
        no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = hf.GPT2Config(**sizes, **no_dropout, use_cache=False, bos_token_id=1, eos_token_id=2)
        return hf.GPT2LMHeadModel(config)

    @zoo_case("hf_llama", ids, "hf")
    def llama():
        """LlamaForCausalLM: rotary embeddings, grouped queries, a gated perceptron."""
        return hf.LlamaForCausalLM(hf.LlamaConfig(**GATED))

    @zoo_case("hf_mistral", ids_and_attention_mask, "hf")
    class Mistral(nn.Module):
        """MistralModel with a sliding window and padding, under a linear head: a tuple comes back."""

        def __init__(self):
            super().__init__()
            self.backbone = hf.MistralModel(hf.MistralConfig(**GATED, sliding_window=4))
            self.head = nn.Linear(16, 2)

        def forward(self, input_ids, attention_mask=None):
            hidden = self.backbone(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            return self.head(hidden), hidden

    @zoo_case("hf_gemma", ids, "hf")
    def gemma():
        """GemmaForCausalLM: tied, scaled embeddings, norms around one."""
        return hf.GemmaForCausalLM(hf.GemmaConfig(**GATED))

    @zoo_case("hf_vit", image, "hf")
    def vit():
        """ViTForImageClassification: patches, class token, learned positions."""
        return hf.ViTForImageClassification(hf.ViTConfig(**SIZES, **PICTURE, **NO_DROPOUT, num_labels=5))

    @zoo_case("hf_t5", source_and_target_ids, "hf")
    def t5():
        """T5ForConditionalGeneration: relative position buckets, cross-attention, tied embeddings."""
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        options = {"vocab_size": 40, "dropout_rate": 0.0, "use_cache": False, "decoder_start_token_id": 0}
        config = hf.T5Config(**sizes, **options)
        return hf.T5ForConditionalGeneration(config)

    @zoo_case("hf_whisper", sound_and_ids, "hf", "random")  # it rolls dice for layer drop, even at rate 0
    class Whisper(nn.Module):
        """WhisperModel: convolutions over sound, then an encoder and a decoder; a dictionary comes back."""

        def __init__(self):
            super().__init__()
            layers = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "use_cache": False}
            heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
            widths = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 8, "vocab_size": 40}
            lengths = {"max_source_positions": 10, "max_target_positions": 10}
            special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
            config = hf.WhisperConfig(**layers, **heads, **widths, **lengths, **special, dropout=0.0)
            self.whisper = hf.WhisperModel(config)

        def forward(self, input_features, decoder_input_ids):
            out = self.whisper(input_features=input_features, decoder_input_ids=decoder_input_ids)
            return {"decoded": out.last_hidden_state, "encoded": out.encoder_last_hidden_state}

    @zoo_case("hf_clip", ids_and_image, "hf")
    class Clip(nn.Module):
        """CLIPModel: a text tower and a picture tower; the embeddings and their similarities come back."""

        def __init__(self):
            super().__init__()
            text = {**SIZES, **TEXT, "bos_token_id": 1, "eos_token_id": 2, "projection_dim": 16}
            vision = {**SIZES, **PICTURE, "projection_dim": 16}
            self.clip = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=16))

        def forward(self, input_ids, pixel_values):
            out = self.clip(input_ids=input_ids, pixel_values=pixel_values)
            return out.logits_per_image, out.text_embeds, out.image_embeds

    @zoo_case("hf_convnext", image, "hf")
    def convnext():
        """ConvNextForImageClassification: depthwise convolutions, norms over channels, layer scale."""
        stages = {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1]}
        config = hf.ConvNextConfig(**stages, patch_size=2, layer_scale_init_value=1.0, num_labels=5)
        return hf.ConvNextForImageClassification(config)

    @zoo_case("hf_swin", image, "hf")
    def swin():
        """SwinModel: shifted windows, relative position biases, patch merging."""
        windows = {"image_size": 16, "patch_size": 2, "window_size": 4, "depths": [2, 1], "num_heads": [2, 2]}
        config = hf.SwinConfig(**windows, **NO_DROPOUT, **INIT, embed_dim=8, drop_path_rate=0.0)
        return hf.SwinModel(config)
