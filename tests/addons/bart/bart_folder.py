"""Folders of BARTs and mBARTs as transformers saves them, at small widths that the seed draws."""

import json
import random
from pathlib import Path

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from tests.convert import vocabularies

CLASSES = {
    "bart": (transformers.BartConfig, transformers.BartForConditionalGeneration),
    "mbart": (transformers.MBartConfig, transformers.MBartForConditionalGeneration),
}
# Keys of files on the hub that say what the classes do anyway.
_OLD_KEYS = {
    "bart": {
        "normalize_before": False,
        "add_final_layer_norm": False,
        "classif_dropout": 0.1,
        "add_bias_logits": False,
    },
    "mbart": {"normalize_before": True, "add_final_layer_norm": True, "static_position_embeddings": False},
}


def write(name: str, folder: Path, seed: int = 0) -> Path:
    """Makes one of `CLASSES` with random weights: biases and norms are none of a new model's."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    num_heads, mlp_dim = rng.choice((2, 3)), rng.choice((20, 36))
    config = CLASSES[name][0](
        vocab_size=write_tokenizer(folder) + 3,
        d_model=num_heads * rng.choice((6, 8)),
        encoder_layers=rng.choice((1, 2)),
        decoder_layers=rng.choice((2, 3)),
        **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), num_heads),
        **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), mlp_dim),
        activation_function={"bart": "gelu", "mbart": "relu"}[name],
        max_position_embeddings=200,
        scale_embedding=name == "mbart",
        decoder_start_token_id=2,
        forced_bos_token_id=0,
    )
    torch.manual_seed(seed)
    model = CLASSES[name][1](config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | _OLD_KEYS[name]))
    return folder


def write_tokenizer(folder: Path) -> int:
    """BART's, byte-level: `<s>` 0, `<pad>` 1, `</s>` 2, `<unk>` 3, rows `<s> text </s>`; returns its number of ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(vocabularies.sentences(60), trainer)
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    transformers.BartTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return tokenizer.get_vocab_size()
