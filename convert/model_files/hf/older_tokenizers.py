"""The tokenizer.json of a folder with the older files, as transformers' fast classes make it of them.

vocab.txt                   BERT's WordPiece, a token a line
vocab.json, merges.txt      byte-level BPE, as RoBERTa has it
"""

from pathlib import Path

from limba.files import untrusted_json

WORDPIECE, BYTES = ("vocab.txt",), ("vocab.json", "merges.txt")
_OF_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_OF_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}


def has_files(folder: Path) -> bool:
    """Whether a tokenizer can be made of the folder's files."""
    return any(all((folder / name).is_file() for name in names) for names in (WORDPIECE, BYTES))


def content(folder: Path) -> bytes:
    """The tokenizer.json that `AutoTokenizer` makes of the files, with the settings of tokenizer_config.json.

    Raises:
      ValueError: if a file is damaged, or a special token is not in the vocabulary.
    """
    file = folder / "tokenizer_config.json"
    config = untrusted_json.read_object(file) if file.is_file() else {}
    is_wordpiece = (folder / WORDPIECE[0]).is_file()
    usual = _OF_BERT if is_wordpiece else _OF_ROBERTA
    named = {role: _token(config.get(f"{role}_token", token)) for role, token in usual.items()}
    return (_wordpiece if is_wordpiece else _bytes)(folder, config, named).encode()


def _token(value: object) -> str:
    return str(value["content"] if isinstance(value, dict) else value)


def _lines(file: Path) -> list[str]:
    """The lines of a file, which end with \\n alone: a token may be another separator of Unicode."""
    return file.read_text("utf-8").removesuffix("\n").split("\n")


def _wordpiece(folder: Path, config: dict, named: dict[str, str]) -> str:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    file = folder / WORDPIECE[0]
    ids = {token: id_ for id_, token in enumerate(_lines(file))}
    _check(file, ids, named)
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token=named["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.add_special_tokens(list(named.values()))
    cls, sep = ((named[role], ids[named[role]]) for role in ("cls", "sep"))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer.to_str()


def _bytes(folder: Path, config: dict, named: dict[str, str]) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    file, merges = (folder / name for name in BYTES)
    ids = untrusted_json.read_object(file)
    _check(file, ids, named)
    pairs = [tuple(line.split()) for line in _lines(merges) if line and line[:8] != "#version"]
    if wrong := next((pair for pair in pairs if len(pair) != 2), None):
        raise ValueError(f"{merges} is damaged: {' '.join(wrong)!r} is no pair of tokens.")
    tokenizer = Tokenizer(models.BPE(ids, pairs))
    space = config.get("add_prefix_space", False)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(x, lstrip=role == "mask", special=True) for role, x in named.items()])
    cls, sep = ((named[role], ids[named[role]]) for role in ("cls", "sep"))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=True, add_prefix_space=space)
    return tokenizer.to_str()


def _check(file: Path, ids: dict[str, int], named: dict[str, str]) -> None:
    if missing := [token for token in named.values() if token not in ids]:
        raise ValueError(
            f"{file} has no token {', '.join(missing)}; write the names of its special tokens into "
            f"{file.with_name('tokenizer_config.json')}, or take the vocabulary that the model was trained with."
        )
