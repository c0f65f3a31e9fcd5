"""Random tokenizers as folders of Hugging Face, with texts, and what transformers makes of these.

python random_tokenizers.py read FOLDER, in an environment with transformers, writes `rows.json` into each folder in
FOLDER. It imports nothing of Limba.
"""

import json
import random
import sys
from pathlib import Path

_WORDS = [
    "ana",
    "river",
    "stone",
    "walks",
    "old",
    "green",
    "шлях",
    "שלום",
    "हिन्दी",
    "क्षत्रिय",
    "می\u200cخواهم",
    "été",
    "naïve",
    "3.14",
    "don't",
    "ＡＢ",
]
_OF_BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
_OF_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
_ODD = ("", " ", "  ", "\n", "\t", "\u200d", "\u200c", "\0", "x" * 40, "?!", "[SEP]", "</s>", "<mask>", "[PAD]x", "<x>")
_ENDLESS = 10**30


def write(seed: int, folder: Path) -> None:
    """A tokenizer with a template, settings and tokens that were drawn, and its `texts.json`."""
    rng = random.Random(seed)
    named = dict(rng.choice((_OF_BERT, _OF_ROBERTA)))
    tokenizer, settings = _trained(rng, [*named.values()])
    special = _add_tokens(rng, tokenizer, [*named.values()])
    if (template := _template(rng, tokenizer, named, special)) is not None:
        tokenizer.post_processor = template
    if rng.random() < 0.2:
        tokenizer.enable_truncation(rng.choice((7, 128)), direction=rng.choice(("left", "right")))
    if rng.random() < 0.2:
        tokenizer.enable_padding(pad_id=tokenizer.token_to_id(named["pad"]), pad_token=named["pad"])
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"} | {f"{role}_token": x for role, x in named.items()}
    types = ["token_type_ids"] if rng.random() < 0.5 else []
    settings["model_input_names"] = ["input_ids", *types, "attention_mask"]
    for key, values in (
        ("truncation_side", ("left", "right")),
        ("model_max_length", (9, 64, 512, _ENDLESS)),
        ("additional_special_tokens", (["<new>"],)),
        ("clean_up_tokenization_spaces", (True, False)),
        ("padding_side", ("left",)),
    ):
        if rng.random() < 0.35:
            settings[key] = rng.choice(values)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    texts = [_text(rng, special) for _ in range(8)]
    pairs = [[_text(rng, special), _text(rng, special)] for _ in range(8)]
    (folder / "texts.json").write_text(json.dumps({"texts": texts, "pairs": pairs, "most": rng.choice((6, 8, 12))}))


def write_t5(folder: Path) -> None:
    """The files beside a spiece.model that has no tokenizer.json beside it, and `texts.json`."""
    rng = random.Random(0)
    sentinels = [f"<extra_id_{i}>" for i in range(100)]
    settings = {"tokenizer_class": "T5Tokenizer", "extra_ids": 100, "additional_special_tokens": sentinels}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "config.json").write_text(json.dumps({"model_type": "t5"}))
    odd = ["</s>", "<unk>", "<pad>", "<s>", "</s></s>", "x</s>y", "  ", "\n"]
    words = ["casa", "mare", "3.14", "?!", "și"]
    texts = [rng.choice(("", " ")).join(rng.choices(odd + words, k=rng.choice((1, 3, 8)))) for _ in range(200)]
    (folder / "texts.json").write_text(json.dumps({"texts": texts, "pairs": [["a", "b"]], "most": 12}))


def _text(rng, special):
    parts = [rng.choice([*_WORDS, *special, *_ODD]) for _ in range(rng.choice((0, 1, 3, 8, 20)))]
    return rng.choice(("", " ", "  ")) + rng.choice((" ", "")).join(parts) + rng.choice(("", " ", "\n"))


def _trained(rng, special):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    kind = rng.choice(("wordpiece", "bpe", "unigram", "words", "bytes"))
    settings = {}
    unk = next(token for token in special if "unk" in token.lower())
    options = {"special_tokens": special, "show_progress": False}
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=unk))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=rng.random() < 0.5)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=120, **options)
    elif kind == "bpe":
        tokenizer = Tokenizer(models.BPE(unk_token=unk))
        tokenizer.normalizer = rng.choice((normalizers.NFKC(), normalizers.Lowercase(), normalizers.NFC()))
        tokenizer.pre_tokenizer = rng.choice((pre_tokenizers.Whitespace(), pre_tokenizers.Metaspace()))
        trainer = trainers.BpeTrainer(vocab_size=140, **options)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        scheme = rng.choice(("always", "first", "never"))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        trainer = trainers.UnigramTrainer(vocab_size=120, unk_token=unk, **options)
    elif kind == "words":
        tokenizer = Tokenizer(models.WordLevel(unk_token=unk))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        trainer = trainers.WordLevelTrainer(**options)
    else:
        tokenizer = Tokenizer(models.BPE())
        # Without the key, the versions of transformers read tokenizer.json differently.
        settings["add_prefix_space"] = rng.random() < 0.5
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=settings["add_prefix_space"])
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **options)
    texts = [" ".join(rng.choice(_WORDS) for _ in range(8)) for _ in range(60)]
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer, settings


def _add_tokens(rng, tokenizer, special):
    from tokenizers import AddedToken

    flags = lambda *names: {name: rng.random() < 0.5 for name in names}  # noqa: E731
    if rng.random() < 0.4:
        token = AddedToken("river stone", **flags("lstrip", "rstrip", "single_word", "normalized"))
        tokenizer.add_tokens([token])
    if rng.random() < 0.4:
        tokenizer.add_special_tokens([AddedToken("<x>", **flags("lstrip", "rstrip"))])
        return [*special, "<x>"]
    return special


def _template(rng, tokenizer, named, special):
    from tokenizers import processors

    cls, sep = named["cls"], named["sep"]
    ids = [(token, tokenizer.token_to_id(token)) for token in special]
    both = [(token, tokenizer.token_to_id(token)) for token in (sep, cls)]
    templates = [
        (f"{cls} $A {sep}", f"{cls} $A {sep} $B:1 {sep}:1"),
        (f"{cls} $A {sep}", f"{cls} $A {sep} {sep} $B {sep}"),
        (f"$A {sep}", f"$A {sep} $B:1 {sep}:1"),
        (f"{sep} $A", f"{sep} $B $A:1 {cls}"),
        (f"{cls} {sep} $A", f"{cls} $A $B:1"),
    ]
    made = [processors.TemplateProcessing(single=a, pair=b, special_tokens=ids) for a, b in templates]
    made += [processors.BertProcessing(*both), processors.RobertaProcessing(*both), processors.ByteLevel(), None]
    made.append(processors.Sequence([processors.ByteLevel(trim_offsets=True), made[0]]))
    return rng.choice(made)


def read(folder: Path) -> None:
    """Writes `rows.json`: ids and token types of texts and pairs, whole and cut, by transformers."""
    from transformers import AutoTokenizer

    for one in sorted(path for path in folder.iterdir() if path.is_dir()):
        given = json.loads((one / "texts.json").read_text())
        tokenizer = AutoTokenizer.from_pretrained(one)
        found = []
        for texts in ([given["texts"]], [*zip(*given["pairs"], strict=True)]):
            for options in ({}, {"truncation": True, "max_length": given["most"]}):
                rows = tokenizer(*map(list, texts), **options)
                ids = rows["input_ids"]
                assert all(set(mask) <= {1} for mask in rows["attention_mask"])  # Padding comes later.
                types = rows.get("token_type_ids") or [[0] * len(row) for row in ids]
                found.append([*zip(ids, types, strict=True)])
        (one / "rows.json").write_text(json.dumps(found))


if __name__ == "__main__":
    read(Path(sys.argv[2]))
