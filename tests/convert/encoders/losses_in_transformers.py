"""Evaluations as the example scripts of transformers make them, of small random models with unusual tokenizers.

python losses_in_transformers.py FOLDER writes `loss.json` into each folder in FOLDER, in an environment with
transformers. It imports nothing of Limba.
"""

import json
import random
import sys
from pathlib import Path

_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh", "ab", "##b", "##c", "##d")
_ENCODER = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2}
_LABELS = {"id2label": {0: "x", 1: "y", 2: "z"}, "label2id": {"x": 0, "y": 1, "z": 2}}
_T5 = {"d_model": 32, "d_kv": 16, "num_heads": 2, "d_ff": 40, "num_layers": 2, "decoder_start_token_id": 0}
_T5 |= {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "pad_token_id": 0, "eos_token_id": 1}
_PAIR = {"sentence1": "{}", "sentence2": "{}", "label": "xyz"}
_ENDS = ("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1")

# Of each evaluation: the script with its keys, the class, the tokenizer's templates and settings, the columns of rows.
CASES = {
    "glue": (
        {"script": "run_glue", "max_seq_length": 9},
        ("BertForSequenceClassification", {"max_position_embeddings": 24}),
        (("[CLS] [CLS] $A [SEP]", "[CLS] [CLS] $A [SEP] [SEP] $B:1 [SEP]:1"), {"truncation_side": "left"}),
        _PAIR,
    ),
    "numbers": (
        {"script": "run_glue"},
        ("ModernBertForSequenceClassification", {"classifier_pooling": "mean", "local_attention": 8}),
        ((), {"model_max_length": 12}),
        {"sentence": "{}", "label": 0.5},
    ),
    "classification": (
        {"script": "run_classification", "text_column_names": "a,b", "text_column_delimiter": " [SEP] "}
        | {"max_seq_length": 12},
        ("RobertaForSequenceClassification", {"max_position_embeddings": 26, "type_vocab_size": 1}),
        (_ENDS, {"model_input_names": ["input_ids", "attention_mask"]}),
        {"a": "{}", "b": "{}", "label": "xyz"},
    ),
    "words": (
        {"script": "run_ner", "max_seq_length": 10},
        ("ModernBertForTokenClassification", {"classifier_pooling": "mean", "local_attention": 8}),
        (_ENDS, {"truncation_side": "left", "model_input_names": ["input_ids", "attention_mask"]}),
        {"tokens": "[]", "ner_tags": "xyz"},
    ),
    "summaries": (
        {"script": "run_summarization", "max_source_length": 10, "max_target_length": 6, "source_prefix": "a: "},
        ("T5ForConditionalGeneration", _T5),
        (("$A [SEP]", "$A [SEP] $B [SEP]"), {"truncation_side": "left"}),
        {"text": "{}", "summary": "{}"},
    ),
    "translations": (
        {"script": "run_translation", "source_lang": "en", "target_lang": "uk", "max_target_length": 6},
        ("MT5ForConditionalGeneration", _T5),
        (("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]"), {}),
        {"translation": {"en": "{}", "uk": "{}"}},
    ),
}
_NUM_ROWS = 16


def write(name: str, folder: Path) -> None:
    """A model of random numbers, its tokenizer, and `rows.json`."""
    import torch
    import transformers

    _, (class_name, settings), (templates, options), columns = CASES[name]
    is_t5 = "T5" in class_name
    tokens = ("[PAD]", "[SEP]", "[UNK]", "[CLS]", *_TOKENS[4:]) if is_t5 else _TOKENS
    _write_tokenizer(folder, ["<pad>", "</s>", "<unk>", *tokens[3:]] if is_t5 else list(tokens), templates, options)
    rng = random.Random(name)
    rows = [_filled(columns, rng) for _ in range(_NUM_ROWS)]
    (folder / "rows.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    ids = {f"{role}_token_id": i for i, role in enumerate(("pad", "unk", "cls", "sep"))} | {"bos_token_id": 2}
    usual = {"vocab_size": 20} | ({} if is_t5 else _ENCODER | _LABELS | ids | {"eos_token_id": 3})
    if columns.get("label") == 0.5:
        usual |= {"id2label": {0: "much"}, "label2id": {"much": 0}, "problem_type": "regression"}
    config = getattr(transformers, f"{class_name.partition('For')[0]}Config")(**(usual | settings))
    torch.manual_seed(3)
    model = getattr(transformers, class_name)(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.25)
    model.save_pretrained(folder)


def _write_tokenizer(folder, tokens, templates, options):
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    pad, unk = (next(token for token in tokens if role in token.lower()) for role in ("pad", "unk"))
    sep = "</s>" if "</s>" in tokens else "[SEP]"
    tokenizer = Tokenizer(models.WordPiece({token: i for i, token in enumerate(tokens)}, unk_token=unk))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([token for token in tokens if token[0] in "[<"])
    tokenizer.add_tokens([AddedToken("e f", lstrip=True, single_word=True)])
    if templates:
        single, pair = (template.replace("[SEP]", sep) for template in templates)
        special = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", sep)]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=special)
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"pad_token": pad, "unk_token": unk, "cls_token": "[CLS]", "mask_token": "[MASK]"}
    named |= {"eos_token": sep} if sep == "</s>" else {"sep_token": sep}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | named | options))


def _filled(columns, rng):
    """A row: texts with special tokens, blanks at their ends, joiners and NUL; words; labels."""
    texts = ["a", "ab", "abcd", "e f", "É", "h?!", "[SEP]", "[MASK]", "\u200d", "\0", "\n", "zz", "  "]
    if columns.get("tokens"):
        words = rng.choices(["a", "abcd", "bcd", "É", "h?!", "zz", "e"], k=rng.randint(1, 9))
        return {"tokens": words, "ner_tags": rng.choices("xyz", k=len(words))}
    made = {}
    for column, kind in columns.items():
        if isinstance(kind, dict):
            made[column] = _filled(kind, rng)
        elif kind == "{}":
            made[column] = rng.choice(("", " ")) + " ".join(["a", *rng.choices(texts, k=rng.randint(0, 12))]) + " "
        else:
            made[column] = round(rng.random(), 2) if kind == 0.5 else rng.choice(kind)
    return made


def loss(name: str, folder: Path) -> float:
    """The mean loss of all targets, batches and padding as in the script."""
    import torch
    import transformers

    keys, (class_name, _), _, _ = CASES[name]
    rows = [json.loads(line) for line in (folder / "rows.json").read_text().splitlines()]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = getattr(transformers, class_name).from_pretrained(folder).eval()
    most = keys.get("max_source_length") or min(keys.get("max_seq_length", 24), tokenizer.model_max_length)
    options = {"truncation": True, "max_length": most, "padding": True, "return_tensors": "pt"}
    if name == "words":
        batch = tokenizer([row["tokens"] for row in rows], is_split_into_words=True, **options)
        labels = torch.full(batch["input_ids"].shape, -100)
        for i, row in enumerate(rows):
            word_ids = batch.word_ids(i)
            for place, word in enumerate(word_ids):
                if word is not None and word not in word_ids[:place]:
                    labels[i, place] = model.config.label2id[row["ner_tags"][word]]
    elif "T5" in class_name:
        rows = [row.get("translation", row) for row in rows]
        given, answers = zip(*(row.values() for row in rows), strict=True)
        batch = tokenizer([keys.get("source_prefix", "") + text for text in given], **options)
        targets = tokenizer(text_target=list(answers), **(options | {"max_length": keys["max_target_length"]}))
        labels = targets["input_ids"].masked_fill(targets["attention_mask"] == 0, -100)
    else:
        texts = [[row[column] for row in rows] for column in rows[0] if column != "label"]
        if "text_column_delimiter" in keys:
            texts = [[keys["text_column_delimiter"].join(pair) for pair in zip(*texts, strict=True)]]
        batch = tokenizer(*texts, **options)
        values = [row["label"] for row in rows]
        is_number = isinstance(values[0], float)
        labels = torch.tensor(values if is_number else [model.config.label2id[value] for value in values])
    if "T5" in class_name:
        batch = {key: batch[key] for key in ("input_ids", "attention_mask")}
    with torch.no_grad():
        return float(model(**batch, labels=labels).loss)


def main(home: str) -> None:
    """Runs in the new process."""
    for folder in Path(home).iterdir():
        (folder / "loss.json").write_text(json.dumps(loss(folder.name, folder)))


if __name__ == "__main__":
    main(*sys.argv[1:])
