"""Random masked language models that transformers saved, each with its kind of vocabulary."""

from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from tests.convert import vocabularies

NAMES = ("bert", "roberta", "xlm-roberta", "modernbert")
BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTAS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}


def greek(text):
    return "".join(chr(ord(c) + 0x350) if c.isalpha() and c.isascii() else c for c in text)


LATIN = vocabularies.sentences(2000)
TEXTS = [*LATIN, *map(greek, LATIN[:1000])]
WORDS = sorted({*" ".join(LATIN).split(), *TEXTS[-10:]})


def tokenizer(name):
    if name == "bert":
        made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=900, special_tokens=BERTS, show_progress=False)
    elif name == "xlm-roberta":
        made = tokenizers.Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        special = ["<s>", "<pad>", "</s>", "<unk>"]
        trainer = trainers.UnigramTrainer(
            vocab_size=700, special_tokens=[*special, "<mask>"], unk_token="<unk>", show_progress=False
        )
    else:  # ModernBERT's special tokens are its last ones, padding among them.
        made = tokenizers.Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=1000,
            special_tokens=ROBERTAS if name == "roberta" else [],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    made.train_from_iterator(TEXTS, trainer)
    if name == "modernbert":
        made.add_special_tokens(BERTS)
    return made


def save(name: str, home: Path) -> Path:
    """Writes a folder with the weights and the tokenizer."""
    import torch
    import transformers

    made = tokenizer(name)
    names = dict(zip(("pad", "unk", "cls", "sep", "mask"), BERTS, strict=True))
    if "roberta" in name:
        names = {"pad": "<pad>", "unk": "<unk>", "cls": "<s>", "sep": "</s>", "mask": "<mask>"}
    roles = {f"{role}_token": token for role, token in names.items()}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **roles).save_pretrained(home)
    ids = {f"{role}_token_id": made.token_to_id(names[role]) for role in ("pad", "cls", "sep")}
    config = transformers.AutoConfig.for_model(
        name, **SIZES, **ids, vocab_size=made.get_vocab_size() + 3, max_position_embeddings=64
    )
    model = transformers.AutoModelForMaskedLM.from_config(config)
    for key, parameter in model.named_parameters():
        if key.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(home)
    return home


def load(folder: Path):
    """The tokenizer and the model that transformers finds in a folder."""
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    return tokenizer, transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
