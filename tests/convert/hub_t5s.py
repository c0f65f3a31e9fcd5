"""Folders of T5's relatives as they lie on the hub: their config.json at small widths, their tokenizers, odd weights.

`write(name, folder, seed)` makes one of `NAMES` with random weights, of sizes that the seed draws.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import safetensors.torch
import sentencepiece
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tests.convert import vocabularies

_SENTINELS = [f"<extra_id_{i}>" for i in reversed(range(100))]
_OF_T5 = {"model_type": "t5", "is_encoder_decoder": True, "decoder_start_token_id": 0, "layer_norm_epsilon": 1e-6}
_OF_T5 |= {"relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "initializer_factor": 1.0}
_OF_T5["dropout_rate"] = 0.1
_GATED = {"feed_forward_proj": "gated-gelu", "dense_act_fn": "gelu_new", "is_gated_act": True}
_UNTIED = {"tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1, **_GATED}
_OF_UMT5 = _OF_T5 | _UNTIED | {"model_type": "umt5", "scalable_attention": True, "output_past": True}
_CODET5 = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "feed_forward_proj": "relu", "output_past": True}
_PROT = {"pad_token_id": 0, "eos_token_id": 1, "feed_forward_proj": "relu", "output_past": True}
_PROT["task_specific_params"] = {"summarization": {"num_beams": 4, "prefix": "summarize: "}}

# config.json without its sizes. All but "vocab_size" are what the hub has.
CONFIGS: dict[str, dict[str, Any]] = {
    "madlad": {**_OF_T5, **_UNTIED, "pad_token_id": 1, "eos_token_id": 2, "classifier_dropout": 0.0},
    "codet5": {**_OF_T5, **_CODET5, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}},
    "codet5p": {**_OF_T5, **_CODET5, "dense_act_fn": "relu", "is_gated_act": False},
    "pile_t5": {**_OF_UMT5, "eos_token_id": 2},
    "prott5": {**_OF_T5, **_PROT, "vocab_size": 128},
    "prostt5": {**_OF_T5, **_PROT, "vocab_size": 150},
    "flan": {**_OF_T5, **_UNTIED, "n_positions": 512, "output_past": True},
    "aya": {**_OF_T5, **_UNTIED, "tokenizer_class": "T5Tokenizer", "output_past": True},
    "t5_encoder": {**_OF_T5, **_UNTIED, "architectures": ["T5EncoderModel"], "is_encoder_decoder": True},
    "umt5_encoder": {**_OF_UMT5, "architectures": ["UMT5EncoderModel"], "is_encoder_decoder": True},
}
# Windows and blocks are shorter than the rows of tests, and divide none of them.
_OF_LONG = _OF_T5 | _UNTIED | {"model_type": "longt5", "local_radius": 4, "global_block_size": 2}
CONFIGS["long_t5_local"] = _OF_LONG | {"encoder_attention_type": "local"}
CONFIGS["long_t5_tglobal"] = _OF_LONG | {"encoder_attention_type": "transient-global"}
NAMES = (*CONFIGS,)
_WIDTHS = {"prott5": (8, 16), "prostt5": (8, 16)}  # of a head: wider in all than d_model


def write(name: str, folder: Path, seed: int = 0) -> Path:
    """Writes the folder of a family. ProtT5's heads are wider in all than d_model, MADLAD's as wide as others'."""
    folder.mkdir(parents=True, exist_ok=True)
    size = _TOKENIZERS[name](folder)
    config = sizes(seed, *_WIDTHS.get(name, (4, 8))) | {"vocab_size": size + 7} | CONFIGS[name]
    torch.manual_seed(seed)
    stem = {"umt5": "UMT5", "longt5": "LongT5"}.get(config["model_type"], "T5")
    kind = config.get("architectures", [f"{stem}ForConditionalGeneration"])[0]
    config["architectures"] = [kind]
    cls = getattr(transformers, kind)
    model = cls(cls.config_class(**config))
    with torch.no_grad():
        for key, x in model.named_parameters():
            scale = 0.2 if x.dim() == 1 else 0.7 if "shared" in key else x.shape[-1] ** -0.5
            scale *= config["d_kv"] ** -0.5 if key.endswith(".q.weight") else 1.0
            x.copy_(torch.randn_like(x) * scale + (x.dim() == 1))
    (folder / "config.json").write_text(json.dumps(config, indent=2))
    _save(name, model, folder)
    return folder


def sizes(seed: int, *head_dims: int) -> dict[str, int]:
    """Widths and depths, as the seed draws them."""
    rng = random.Random(seed)
    heads, of_head = rng.choice((2, 3, 4)), rng.choice(head_dims or (4, 8))
    deep = rng.choice((2, 3))
    return {
        "d_model": rng.choice((16, 24, 32)),
        "d_kv": of_head,
        "d_ff": rng.choice((20, 40)),
        "num_heads": heads,
        "num_layers": deep,
        "num_decoder_layers": deep,
    }


def _save(name: str, model: Any, folder: Path) -> None:
    """In the formats of the hub: shards, bfloat16, `.bin`, and MADLAD's names of the embedding."""
    tensors = {key: tensor.clone().contiguous() for key, tensor in model.state_dict().items()}
    if name == "madlad":
        kept = {key: x for key, x in tensors.items() if key not in ("shared.weight", "encoder.embed_tokens.weight")}
        safetensors.torch.save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
        generation = {"decoder_start_token_id": 0, "eos_token_id": 2, "pad_token_id": 1, "_from_model_config": True}
        (folder / "generation_config.json").write_text(json.dumps(generation))
    elif name in ("codet5", "prott5", "aya"):
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        config = (folder / "config.json").read_text()
        if name.endswith("_encoder"):
            model = model.to(torch.bfloat16)
        model.save_pretrained(folder, max_shard_size="20KB" if name in ("t5_encoder", "flan") else "5GB")
        (folder / "config.json").write_text(config)
        (folder / "generation_config.json").unlink(missing_ok=True)


# ------------------------------------------------------ tokenizers ---------------------------------------------------


def _spiece(folder: Path, **options: Any) -> int:
    vocabularies.train(folder / "spiece.model", **options)
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model")).get_piece_size()


def _t5(folder: Path) -> int:
    size = _spiece(folder)
    transformers.T5TokenizerFast(str(folder / "spiece.model")).save_pretrained(folder)
    return size + 100


def _mt5(folder: Path) -> int:
    model = vocabularies.train(folder / "spiece.model")
    model.write_bytes(vocabularies.with_sentinels(model, 100))
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "pad_token": "<pad>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return vocabularies.NUM_PIECES + 100


def _madlad(folder: Path) -> int:
    """Its special pieces are SentencePiece's own: <unk>, <s> and </s>; no sentinels, and <2ro> for a language."""
    languages = ["<2ro>", "<2en>"]
    usual = {"unk_id": 0, "bos_id": 1, "eos_id": 2, "pad_id": -1, "user_defined_symbols": languages}
    size = _spiece(folder, **usual)
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 0, "additional_special_tokens": [], "legacy": True}
    config |= {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<s>", "unk_token": "<unk>"}
    decoder = {str(i): {"content": x, "special": True} for i, x in enumerate(("<unk>", "<s>", "</s>"))}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"added_tokens_decoder": decoder}))
    return size


def _byte_level(folder: Path) -> Tokenizer:
    """RoBERTa's, as CodeT5 has it: `<pad>` 0, `<s>` 1, `</s>` 2, `<unk>` 3, `<mask>` 4, the sentinels behind."""
    special = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(vocabularies.sentences(300), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 1), add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(token, lstrip=True, special=True) for token in _SENTINELS])
    return tokenizer


def _codet5_files(folder: Path) -> dict[str, Any]:
    names = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "pad": "<pad>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    flags = {"single_word": False, "lstrip": True, "rstrip": False, "normalized": True}
    return {
        "tokenizer_class": "RobertaTokenizer",
        "add_prefix_space": False,
        "model_max_length": 512,
        "errors": "replace",
        "trim_offsets": True,
        "additional_special_tokens": [{"content": token, "__type": "AddedToken", **flags} for token in _SENTINELS],
        **{f"{role}_token": token for role, token in names.items()},
    }


def _codet5(folder: Path) -> int:
    """In the older files, vocab.json and merges.txt."""
    tokenizer = _byte_level(folder)
    tokenizer.model.save(str(folder))
    ids = {token: tokenizer.token_to_id(token) for token in _SENTINELS}
    (folder / "added_tokens.json").write_text(json.dumps(ids))
    (folder / "tokenizer_config.json").write_text(json.dumps(_codet5_files(folder)))
    return tokenizer.get_vocab_size()


def _codet5p(folder: Path) -> int:
    tokenizer = _byte_level(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(_codet5_files(folder)))
    return tokenizer.get_vocab_size()


def _llama(folder: Path) -> int:
    """Llama's BPE with bytes for unknown characters: `<unk>` 0, `<s>` 1, `</s>` 2; no token of padding."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    space = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(space)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(vocabularies.sentences(60), trainer)
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = content["added_tokens"][:3]
    tokenizer = Tokenizer.from_str(json.dumps(content))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SENTINELS])
    tokenizer.post_processor = processors.TemplateProcessing("$A </s>", "$A </s> $B </s>", [("</s>", 2)])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": False, "add_eos_token": True, "legacy": False}
    config |= {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": None}
    config |= {"sp_model_kwargs": {}, "clean_up_tokenization_spaces": False, "model_max_length": 10**30}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer.get_vocab_size()


def _proteins(folder: Path, *more: str) -> int:
    """A piece for each amino acid, as ProtT5 has them, and sentinels behind up to 128."""
    letters = "ALGVSRETIDPKQNFYMHCWXUBZ"
    text = [" ".join(random.Random(i).choices(letters, k=40)) for i in range(200)]
    vocabularies.train(
        folder / "spiece.model",
        text,
        vocab_size=28 + len(more),
        model_type="unigram",
        user_defined_symbols=[*more],
        hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc",
    )
    size = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model")).get_piece_size()
    config = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "do_lower_case": False, "pad_token": "<pad>"}
    config |= {"additional_special_tokens": [f"<extra_id_{i}>" for i in range(100)], "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return size + 100


_TOKENIZERS: dict[str, Callable[[Path], int]] = {
    "madlad": _madlad,
    "codet5": _codet5,
    "codet5p": _codet5p,
    "pile_t5": _llama,
    "prott5": _proteins,
    "prostt5": lambda folder: _proteins(folder, "<fold2AA>", "<AA2fold>"),
    "flan": _t5,
    "aya": _mt5,
    "long_t5_local": _t5,
    "long_t5_tglobal": _t5,
    "t5_encoder": _t5,
    "umt5_encoder": _mt5,
}
