"""The tokenizer.json of a folder with the older files, as transformers' fast classes make it of them.

vocab.txt                   BERT's WordPiece, a token a line
vocab.json, merges.txt      byte-level BPE, as RoBERTa has it
sentencepiece.bpe.model     SentencePiece's unigrams, as XLM-R has them, or CamemBERT
spm.model                   SentencePiece's unigrams with DeBERTa-v3's special tokens
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from limba.convert.model_files.hf import tokenizer_folder
from limba.files import json_text, untrusted_files, untrusted_json
from limba.files.untrusted_files import shown

WORDPIECE, BYTES, UNIGRAMS = ("vocab.txt",), ("vocab.json", "merges.txt"), ("sentencepiece.bpe.model",)
OF_DEBERTA = ("spm.model",)
FILES = (WORDPIECE, BYTES, UNIGRAMS, OF_DEBERTA)
_OF_BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_OF_ROBERTA = {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"}
# The tokens before the pieces of SentencePiece, with their scores, and how many of its own pieces these take the place
# of: fairseq's order, in which each piece has another id than in the model.
_FIRST: Mapping[str, tuple[list[tuple[str, float]], int]] = {
    "xlm-roberta": ([("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)], 3),
    "camembert": (
        [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)],
        1,
    ),
}
# Classes of transformers that make of these files what is made here.
_BERTS = ("Bert", "DistilBert", "Electra", "MPNet", "RoFormer", "PreTrained")
_BYTES_OR_UNIGRAMS = ("Roberta", "GPT2", "XLMRoberta", "Camembert", "PreTrained")
_DEBERTAS = ("DebertaV2", "PreTrained")
_UNIGRAM, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4  # of SentencePiece's TrainerSpec and of its pieces


def has_files(folder: Path) -> bool:
    """Whether a tokenizer can be made of the folder's files."""
    return any(all((folder / name).is_file() for name in names) for names in FILES)


def differences(folder: Path) -> str:
    """A sentence about texts that the folder's tokenizer.json and the older files beside it tokenize differently.

    It is "" where they agree, or one of both is not there. Pieces, their ids and merges are compared: both get what
    tokenizer.json does before. Tokens that were added to it are no difference.
    """
    from limba.tasks.vocabularies import TokenizerVocabulary, tokenizer_texts

    names = next((names for names in FILES if all((folder / name).is_file() for name in names)), None)
    if names is None or not (folder / "tokenizer.json").is_file():
        return ""
    try:
        of_files = json.loads(content(folder))
    except ValueError:  # Nothing reads them beside a tokenizer.json.
        return ""
    fast = untrusted_json.read_object(folder / "tokenizer.json")
    model = fast.get("model")
    if isinstance(model, dict) and all(of_files["model"].get(key) == model.get(key) for key in ("vocab", "merges")):
        return ""
    of_files |= {step: fast.get(step) for step in ("normalizer", "pre_tokenizer")}
    file = tokenizer_folder.temporary_file(json_text.dumps(of_files, ensure_ascii=False).encode())
    ours, older = TokenizerVocabulary(str(folder / "tokenizer.json")), TokenizerVocabulary(str(file))
    texts, encode = tokenizer_texts.texts_of(ours).plain, tokenizer_texts.encoder_of(ours)
    known = older.tokenizer.get_vocab_size()
    texts = [text for text, ids in zip(texts, encode(texts), strict=True) if max(ids, default=0) < known]
    found = tokenizer_texts.differences(texts, encode, tokenizer_texts.encoder_of(older))
    if not found:
        return ""
    return f"{folder} has two tokenizers: {found.describe('tokenizer.json', ' and '.join(names))}."


def content(folder: Path) -> bytes:
    """The tokenizer.json that `AutoTokenizer` makes of the files, with the settings of tokenizer_config.json.

    Raises:
      ValueError: if a file is damaged, or a special token is not in the vocabulary.
    """
    from limba.tasks.vocabularies import beside_tokenizer

    config = beside_tokenizer.settings(folder)
    is_wordpiece = (folder / WORDPIECE[0]).is_file()
    if not any(all((folder / name).is_file() for name in names) for names in (WORDPIECE, BYTES, UNIGRAMS)):
        _check_class(folder, _DEBERTAS)
        return _of_deberta(folder, config).encode()
    _check_class(folder, _BERTS if is_wordpiece else _BYTES_OR_UNIGRAMS)
    is_mpnet = is_wordpiece and beside_tokenizer.class_of(folder).lower().startswith("mpnet")
    usual = _OF_ROBERTA | {"unk": "[UNK]"} if is_mpnet else _OF_BERT if is_wordpiece else _OF_ROBERTA
    named = {role: beside_tokenizer.name(config.get(f"{role}_token", token)) for role, token in usual.items()}
    if (folder / UNIGRAMS[0]).is_file() and not is_wordpiece:
        return _unigrams(folder, named).encode()
    if is_wordpiece:
        return _wordpiece(folder, config, named, 2 if is_mpnet else 1).encode()
    return _bytes(folder, config, named).encode()


def _check_class(folder: Path, known: tuple[str, ...]) -> None:
    """Raises ValueError if the class that reads the files takes words apart in a way of its own."""
    from limba.tasks.vocabularies import beside_tokenizer

    if (found := beside_tokenizer.class_of(folder)).endswith("Tokenizer") and found.removesuffix(
        "Tokenizer"
    ) not in known:
        raise ValueError(
            f"{folder}: tokenizer_class is {shown(found)}, which reads its files in a way of its own, and Limba does "
            "not. If transformers has a fast class for it, AutoTokenizer.from_pretrained(IN).save_pretrained(OUT) "
            "writes a tokenizer.json, which Limba reads."
        )


def _lines(file: Path) -> list[str]:
    """The lines of a file, which end with \\n alone: a token may be another separator of Unicode."""
    return untrusted_files.read_text(file).removesuffix("\n").split("\n")


def _wordpiece(folder: Path, config: dict, named: dict[str, str], num_between: int) -> str:
    """`num_between` is how often [SEP] stands between two texts."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

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
    return tokenizer_folder.framed(tokenizer, named, num_between, 1)


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


def _unigrams(folder: Path, named: dict[str, str]) -> str:
    """As transformers' XLMRobertaConverter and CamembertConverter."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    from limba.tasks.vocabularies import beside_tokenizer

    file = folder / UNIGRAMS[0]
    proto = _model_of_unigrams(file, "XLM-R and CamemBERT")
    kinds = beside_tokenizer.class_of(folder), str(beside_tokenizer.read(folder / "config.json").get("model_type"))
    is_camembert = any(kind.lower().startswith("camembert") for kind in kinds)
    first, num_replaced = _FIRST["camembert" if is_camembert else "xlm-roberta"]
    pieces = [*first, *((piece.piece, piece.score) for piece in proto.pieces[num_replaced:]), ("<mask>", 0.0)]
    ids = {token: id_ for id_, (token, _) in reversed([*enumerate(pieces)])}
    _check(file, ids, named)
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=ids["<unk>"]))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    steps = [normalizers.Strip(left=False, right=True), normalizers.Replace(Regex(" {2,}"), "▁")]
    tokenizer.normalizer = normalizers.Sequence([*([normalizers.Precompiled(charsmap)] if charsmap else []), *steps])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()  # add_prefix_space has no effect on these classes
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_tokens(_own_tokens(proto))
    tokenizer.add_special_tokens([AddedToken(x, lstrip=role == "mask", special=True) for role, x in named.items()])
    return tokenizer_folder.framed(tokenizer, named, 2, 0)


def _of_deberta(folder: Path, config: dict) -> str:
    """As transformers' DebertaV2Converter: pieces have SentencePiece's ids, and [MASK] the next one if it is none."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    from limba.tasks.vocabularies import beside_tokenizer

    file = folder / OF_DEBERTA[0]
    proto = _model_of_unigrams(file, "DeBERTa-v3")
    ids = {piece.piece: id_ for id_, piece in enumerate(proto.pieces)}
    named = {role: beside_tokenizer.name(config.get(f"{role}_token", token)) for role, token in _OF_BERT.items()}
    _check(file, ids, {role: token for role, token in named.items() if role != "mask"})
    unk_id = next((id_ for id_, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN), None)
    tokenizer = Tokenizer(models.Unigram([(piece.piece, piece.score) for piece in proto.pieces], unk_id=unk_id))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if config.get("do_lower_case") else []),
            normalizers.Strip(),
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    punctuation = [pre_tokenizers.Punctuation("isolated")] if config.get("split_by_punct") else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*punctuation, pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_tokens(_own_tokens(proto))
    tokenizer.add_special_tokens([AddedToken(x, normalized=role == "unk", special=True) for role, x in named.items()])
    return tokenizer_folder.framed(tokenizer, named, 1, 1)


def _model_of_unigrams(file: Path, whose: str) -> Any:
    """A file of SentencePiece. Raises ValueError if it is damaged, or has no unigrams."""
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

    try:
        proto = sentencepiece_pb2.ModelProto.FromString(untrusted_files.read_bytes(file))
    except DecodeError as error:
        raise ValueError(f"{file} is damaged: it is no model of SentencePiece. Download it again.") from error
    if proto.trainer_spec.model_type != _UNIGRAM:
        raise ValueError(
            f"{file} is no unigram model of SentencePiece, as {whose} have. Save the tokenizer with transformers, "
            "AutoTokenizer.from_pretrained(IN).save_pretrained(OUT): then there is a tokenizer.json."
        )
    return proto


def _own_tokens(proto: Any) -> list[Any]:
    """The pieces of a model that texts are split by: its control tokens, which are special, and the user's."""
    from tokenizers import AddedToken

    own = [piece for piece in proto.pieces if piece.type in (_CONTROL, _USER_DEFINED)]
    return [AddedToken(piece.piece, normalized=False, special=piece.type == _CONTROL) for piece in own]


def _check(file: Path, ids: dict[str, int], named: dict[str, str]) -> None:
    if missing := [token for token in named.values() if token not in ids]:
        raise ValueError(
            f"{file} has no token {', '.join(missing)}; write the names of its special tokens into "
            f"{file.with_name('tokenizer_config.json')}, or take the vocabulary that the model was trained with."
        )
