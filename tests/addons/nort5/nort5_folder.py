"""Folders of HPLT's models as they lie on the hub, at small widths: names of tensors and keys, and random numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from convert.families import heads
from convert.tensors import safetensors_files
from limba.addons.nort5.nort5 import NorT5Config
from limba.addons.nort5.nort5_family import FAMILY
from limba.checkpoint_files.saved_tensors import from_array

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[BOS]", "[EOS]")
SENTINELS = tuple(f"[MASK_{i}]" for i in range(1, 100))
WORDS = ("the", "list", "of", "is", "a", "file", "text", "which", "has", "words", "and", "lines", "in", "it", "read")


def write_tokenizer(folder: Path, special: tuple[str, ...] = SPECIAL) -> int:
    """A WordPiece of whole words and letters, whose rows are `[CLS] text [SEP]`; returns how many ids it has."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokens = [*special, *SENTINELS, *(f"▁{word}" for word in WORDS), "▁", *"abcdefghijklmnopqrstuvwxyz."]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", continuing_subword_prefix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $0 [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*special, *SENTINELS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "sep", "pad", "cls", "mask")}
    roles |= {f"{role}_token": f"[{role.upper()}]" for role in ("bos", "eos") if f"[{role.upper()}]" in special}
    (folder / "special_tokens_map.json").write_text(json.dumps(roles))
    return len(tokens)


def settings(**sizes: Any) -> dict[str, Any]:
    """The config.json of HPLT's prototype, with other sizes."""
    return {
        "architectures": ["NorT5ForConditionalGeneration"],
        "auto_map": {
            "AutoConfig": "configuration_nort5.NorT5Config",
            "AutoModel": "modeling_nort5.NorT5Model",
            "AutoModelForSeq2SeqLM": "modeling_nort5.NorT5ForConditionalGeneration",
            "AutoModelForConditionalGeneration": "modeling_nort5.NorT5ForConditionalGeneration",
        },
        "attention_probs_dropout_prob": 0.0,
        "bos_token_id": 5,
        "cls_token_id": 2,
        "eos_token_id": 6,
        "hidden_dropout_prob": 0.0,
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-7,
        "max_position_embeddings": 512,
        "output_all_encoded_layers": True,
        "pad_token_id": 0,
        "sep_token_id": 3,
        "torch_dtype": "float32",
        "max_length": 512,
        "max_new_tokens": 256,
        "is_encoder_decoder": True,
        **sizes,
    }


def write(folder: Path, seed: int = 0, special: tuple[str, ...] = SPECIAL, **fields: Any) -> Path:
    """A folder; `fields` are of the network."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"emb_dim": 24, "num_heads": 3, "mlp_dim": 20, "num_encoder_layers": 2, "num_buckets": 6, **fields}
    sizes |= {"head_dim": sizes["emb_dim"] // sizes["num_heads"], "num_decoder_layers": sizes["num_encoder_layers"]}
    config = NorT5Config(vocab_size=write_tokenizer(folder, special) + 5, **sizes)
    (folder / "config.json").write_text(
        json.dumps(
            settings(
                vocab_size=config.vocab_size,
                hidden_size=config.emb_dim,
                intermediate_size=config.mlp_dim,
                num_attention_heads=config.num_heads,
                num_hidden_layers=config.num_encoder_layers,
                position_bucket_size=config.num_buckets,
            )
        )
    )
    generation = {"_from_model_config": True, "decoder_start_token_id": 5, "eos_token_id": 6, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(generation))
    rng, tensors = np.random.default_rng(seed), {}
    for row in FAMILY.table(config, heads.OF_T5):
        name = FAMILY.tensor_name(row.name)
        center = 0.8 if name.endswith("norm.weight") else 0.0
        tensors[name] = from_array(rng.normal(center, 0.3, row.shape).astype(np.float32))
    safetensors_files.write(folder, tensors, lambda count: None, 2**30)
    return folder
