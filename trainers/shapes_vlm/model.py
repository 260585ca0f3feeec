"""The tiny vision-language model: an Idefics3 (SmolVLM) that transformers loads and vLLM serves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3ImageProcessorPil,
    Idefics3Processor,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from mmrubric.shapes.world import SIZE

PATCH, SCALE = 8, 2
IMAGE_TOKENS = (SIZE // PATCH // SCALE) ** 2
"""Tokens of one picture in the language model."""
WIDTH, HEADS = 128, 4
VISION_LAYERS, TEXT_LAYERS = 4, 4
VOCABULARY = 512
CONTEXT = 1024
PAD, END, USER, ASSISTANT, SYSTEM = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
IMAGE, AROUND, GLOBAL = "<image>", "<fake_token_around_image>", "<global-img>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<image>{% endif %}"
    "{% endfor %}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def build_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE, so that any text can be read and any JSON written; common words of `texts` are one token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [PAD, END, USER, ASSISTANT, SYSTEM, IMAGE, AROUND, GLOBAL, "<end_of_utterance>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = BpeTrainer(vocab_size=VOCABULARY, special_tokens=special, initial_alphabet=alphabet, show_progress=False)  # pyright: ignore[reportCallIssue]
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, model_max_length=CONTEXT, padding_side="left"
    )


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Idefics3Processor:
    """One view of `SIZE` pixels per picture, no tiles."""
    side = {"longest_edge": SIZE}
    pictures = Idefics3ImageProcessorPil(size=side, max_image_size=side, do_image_splitting=False)
    return Idefics3Processor(pictures, tokenizer, image_seq_len=IMAGE_TOKENS, chat_template=CHAT_TEMPLATE)


def build_model(tokenizer: PreTrainedTokenizerFast) -> Idefics3ForConditionalGeneration:
    """About 1.9 million weights."""
    ids: dict[str, Any] = {
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": None,
    }
    text = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=3 * WIDTH,
        num_hidden_layers=TEXT_LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        **ids,
    )
    vision = {
        "hidden_size": WIDTH,
        "intermediate_size": 3 * WIDTH,
        "num_hidden_layers": VISION_LAYERS,
        "num_attention_heads": HEADS,
        "image_size": SIZE,
        "patch_size": PATCH,
    }
    config = Idefics3Config(
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE),  # pyright: ignore[reportArgumentType]
        tie_word_embeddings=True,
        vision_config=vision,
        text_config=text,
        scale_factor=SCALE,
        pad_token_id=tokenizer.pad_token_id,  # pyright: ignore[reportArgumentType]
    )
    return Idefics3ForConditionalGeneration(config)


def save(model: Idefics3ForConditionalGeneration, processor: Idefics3Processor, folder: Path) -> None:
    """Write model and processor with float16 weights, as transformers and vLLM read them."""
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
