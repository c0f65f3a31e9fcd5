"""The vocabulary of a Hugging Face T5, mT5, umT5 or ByT5, from the tokenizer files of its folder."""

import dataclasses
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2 as sentencepiece_pb2

from limba.convert.model_files.hf import hf_tokenizer, padding_first, tokenizer_json, tokenizer_settings
from limba.convert.model_files.hf.hf_tokenizer import NUM_BYTE_IDS, SPIECE, Tokenizer, read_json
from limba.convert.model_files.hf.special_tokens import OF_T5, PAD_ID
from limba.data.sentinels import NAME, counts_down, number
from limba.files import json_text, untrusted_files


def read(folder: Path, learns_sentinels: bool = False, pad_id: int = PAD_ID) -> dict[str, Any]:
    """The vocabulary of a Hugging Face folder of T5's families, as `run.json` would describe it.

    Of two files that tokenize differently it is tokenizer.json, which transformers reads, and a warning says so. What
    tokenizer.json says is a SentencePiece model, for as long as the process lives, if one gives the same tokens.

    Args:
      learns_sentinels: whether masked spans are learned. A ByT5's tokenizer names sentinels that Google's weights do
        not know; training gives them a meaning, from the last id down, as run_t5_mlm_flax.py takes them.
      pad_id: the folder's id of padding, which has the id 0 in the vocabulary; see `padding_first`.

    Raises:
      FileNotFoundError: if there is no SentencePiece model and no tokenizer.json.
      ValueError: if no vocabulary of SeqIO's gives the folder's ids; the tokens are named. Or if a file is damaged.
    """
    try:
        return _read(folder, learns_sentinels, pad_id)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder}: a file of the tokenizer is damaged ({type(error).__name__}: {error}). Download it again, or "
            "give the SentencePiece model with --vocab FILE."
        ) from error


def _read(folder: Path, learns_sentinels: bool, pad_id: int) -> dict[str, Any]:
    config = read_json(folder / "tokenizer_config.json")
    classes = (config.get("tokenizer_class"), read_json(folder / "config.json").get("tokenizer_class"))
    if "ByT5Tokenizer" in classes:
        return _read_bytes(folder, config, learns_sentinels)
    files = _Files.of(folder, pad_id)
    if not files.fast and config.get("add_prefix_space", True) is None and _is_t5s(classes):
        print(
            f"warning: {folder}/tokenizer_config.json: add_prefix_space is null, and there is no tokenizer.json: the "
            "fast class of version 4 of transformers puts no space before a text then. The run does, as SentencePiece "
            "does. If the model was trained without it, save the folder with transformers, which writes "
            "tokenizer.json: AutoTokenizer.from_pretrained(IN).save_pretrained(OUT).",
            file=sys.stderr,
        )
    # Version 4 makes the tokenizer of the pieces then, and passes tokenizer.json over.
    has_pieces = (files.place / SPIECE).is_file()
    passes_json = has_pieces and files.fast and _is_t5s(classes) and config.get("add_prefix_space") is not None
    if passes_json:
        files = dataclasses.replace(files, fast={})
    if (text := _odd_rows(files)) is not None:
        file = hf_tokenizer.temporary_file(text.encode(), "tokenizer.json")
        named = {} if _is_t5s(classes) else {"tokenizer_class": next(filter(None, classes))}
        # `added_sentinels` looks beside the file.
        file.with_name("tokenizer_config.json").write_text(json_text.dumps(config | named), "utf-8")
        tokenizer = hf_tokenizer.from_json(file)
    elif has_pieces:
        tokenizer = _of_model(files)
    elif files.fast:
        tokenizer = _of_json(files)
    else:
        raise hf_tokenizer.NoVocabularyError(
            f"{folder} has no spiece.model and no tokenizer.json; give the SentencePiece model with --vocab FILE."
        )
    if passes_json:
        _say_json_is_passed_over(files, tokenizer)
    _say_lost_sentinels(files, tokenizer)
    return tokenizer.vocabulary


@dataclasses.dataclass(frozen=True)
class _Files:
    """A folder, its tokenizer_config.json and its tokenizer.json; empty ones are not there.

    Attributes:
      folder: for messages.
      place: where the files are in which padding is 0.
    """

    folder: Path
    place: Path
    config: Mapping[str, Any]
    fast: Mapping[str, Any]

    @classmethod
    def of(cls, folder: Path, pad_id: int) -> "_Files":
        place = padding_first.folder_with(folder, pad_id)
        return cls(folder, place, read_json(place / "tokenizer_config.json"), read_json(place / "tokenizer.json"))

    @functools.cached_property
    def added(self) -> dict[str, int]:
        """See `_added_tokens`."""
        return _added_tokens(self.place, self.config, self.fast)


def _odd_rows(files: _Files) -> str | None:
    """The folder's tokenizer.json, with what its tokenizer_config.json says, if a row has another form than that of a
    T5's: other special tokens than </s> behind the text, or a beginning that is cut. None of usual rows.

    Raises:
      ValueError: if only a SentencePiece model is there, which cannot say it.
    """
    from limba.tasks.vocabularies import T5TokenizerVocabulary, beside_tokenizer

    if not files.fast:
        if files.config.get("truncation_side") == "left":
            raise ValueError(
                f"{files.folder}/tokenizer_config.json: truncation_side is 'left', and a {SPIECE} alone does not say "
                "it. AutoTokenizer.from_pretrained(IN).save_pretrained(OUT) writes a tokenizer.json, which does; or "
                "take the key out, and the end of long texts is cut."
            )
        return None
    if "model" not in files.fast:  # It is damaged, as its next reader says.
        return None
    file = files.place / "tokenizer.json"
    vocabulary = T5TokenizerVocabulary(str(file))
    ends = [] if vocabulary.eos_id is None else [vocabulary.eos_id]
    if vocabulary.frame[:2] == ([], ends) and not vocabulary.cuts_left:
        return None
    return beside_tokenizer.applied(files.place, untrusted_files.decode(untrusted_files.read_bytes(file), str(file)))


def _is_t5s(classes: tuple[Any, Any]) -> bool:
    """Whether transformers takes T5's class, as it does where the files name none."""
    return next((name for name in classes if name), hf_tokenizer.T5_CLASSES[0]) in hf_tokenizer.T5_CLASSES


def _say_json_is_passed_over(files: _Files, tokenizer: Tokenizer) -> None:
    """Prints that tokenizer.json tokenizes otherwise than spiece.model, if it does."""
    from limba.tasks.vocabularies import tokenizer_texts

    folder = files.folder
    if differences := tokenizer_texts.differences_of_files(tokenizer.vocabulary, files.place):
        print(
            f"warning: {folder} has two tokenizers: {differences.describe('tokenizer.json', SPIECE)}. The run takes "
            f"{SPIECE}, of which version 4 of transformers makes the tokenizer where tokenizer_config.json has "
            f"add_prefix_space; --vocab {folder}/tokenizer.json takes the other.",
            file=sys.stderr,
        )


class _OtherIds(ValueError):
    """SeqIO's vocabulary gives tokens of the folder other ids, or none."""


def _of_model(files: _Files) -> Tokenizer:
    """The folder's SentencePiece model, if it gives the folder's ids, else its tokenizer.json or one that does."""
    from limba.tasks.vocabularies import tokenizer_texts

    model_file = files.place / SPIECE
    try:
        tokenizer = _with_model(files, model_file)
    except _OtherIds as error:
        return _json_alone(files, error) if files.fast else _new_json(files, model_file, error)
    if not counts_down(tokenizer.sentinels, tokenizer.vocab_size):
        return _json_alone(files) if files.fast else tokenizer
    # What `write` makes of the SentencePiece model that a run had needs no comparison.
    if (
        not files.fast
        or files.fast == hf_tokenizer.json_of(tokenizer)
        or not (differences := tokenizer_texts.differences_of_files(tokenizer.vocabulary, files.place))
    ):
        return tokenizer
    found = _of_json(files)
    print(
        f"warning: {files.folder} has two tokenizers: {differences.describe('tokenizer.json', SPIECE)}. The run takes "
        f"tokenizer.json, as transformers does; --vocab {files.folder / SPIECE} takes the other.",
        file=sys.stderr,
    )
    return found


def _of_json(files: _Files) -> Tokenizer:
    """What a folder's tokenizer.json says: a SentencePiece model if one gives the same tokens, else the file itself."""
    from limba.tasks.vocabularies import damaged_models, tokenizer_texts

    file = files.place / "tokenizer.json"
    named = str(files.folder / file.name)
    try:
        special = hf_tokenizer.from_json(file).special if "vocab" in files.fast["model"] else OF_T5
        model = tokenizer_json.to_model(files.fast, _num_sentinels(files.fast), named, special)
        damaged_models.check(model, named)
        tokenizer = _with_model(files, hf_tokenizer.temporary_file(model.SerializeToString()))
    except tokenizer_json.OtherThanSentencePiece:
        return _json_alone(files)
    except _OtherIds as error:
        return _json_alone(files, error)
    # SentencePiece would set a piece for the space before a sentinel that is not in T5's place.
    is_usual = counts_down(tokenizer.sentinels, tokenizer.vocab_size)
    if not is_usual or tokenizer_texts.differences_of_files(tokenizer.vocabulary, files.place):
        return _json_alone(files)
    return tokenizer


def _json_alone(files: _Files, error: _OtherIds | None = None) -> Tokenizer:
    """The tokenizer.json as the vocabulary. Raises ValueError if it lacks tokens of other files."""
    tokenizer = hf_tokenizer.from_json(files.place / "tokenizer.json")
    known = {token["content"]: token["id"] for token in files.fast.get("added_tokens", ())}
    known |= {token: id_ for id_, token in enumerate(_entries(files.fast))}
    missing = {token: id_ for token, id_ in files.added.items() if token not in known}
    if missing and error is not None:
        raise error
    return tokenizer


def _new_json(files: _Files, model_file: Path, error: _OtherIds) -> Tokenizer:
    """A tokenizer.json of a SentencePiece model and tokens with any ids, for as long as the process lives.

    Added tokens that are not special, such as "{", are found in a text before it is normalized, as T5's class without a
    tokenizer.json does. If there are any, each stretch between them begins with a space, as in that class.
    """
    model = sentencepiece_pb2.ModelProto.FromString(model_file.read_bytes())
    num_pieces = len(model.pieces)
    behind = {id_: token for token, id_ in files.added.items() if id_ >= num_pieces}
    if not any(map(NAME.fullmatch, files.added)):  # Version 3 wrote the number of sentinels alone.
        count = files.config.get("extra_ids", hf_tokenizer.open_model(model_file, None).extra_ids)
        behind = {num_pieces + count - 1 - i: f"<extra_id_{i}>" for i in range(count)} | behind
    pieces = {piece.piece: id_ for id_, piece in enumerate(model.pieces)}
    elsewhere = {token: id_ for token, id_ in files.added.items() if id_ < num_pieces and pieces.get(token) != id_}
    if model.trainer_spec.model_type != sentencepiece_pb2.TrainerSpec.UNIGRAM:
        raise ValueError(f"{error} A tokenizer.json would carry these ids, and only a unigram model becomes one.")
    if elsewhere or sorted(behind) != list(range(num_pieces, num_pieces + len(behind))):
        raise ValueError(f"{error} A tokenizer.json cannot carry these ids either: they are not one after the other.")
    of_model = hf_tokenizer.from_file(model_file, None).special
    special = of_model.by_id | behind
    special |= {id_: token for token, id_ in files.added.items() if NAME.fullmatch(token)}
    content = tokenizer_json.from_model(model, len(behind), special, of_model.eos.id)
    flags = {token["content"]: token for token in files.config.get("added_tokens_decoder", {}).values()}
    are_special = {*of_model.by_id.values(), *tokenizer_settings.of_folder(files.folder).special_tokens}
    plain = []
    for token in content["added_tokens"]:
        name = token["content"]
        given = flags.get(name, {"special": name in are_special or NAME.fullmatch(name) is not None})
        token.update({key: given[key] for key in tokenizer_json.FLAGS if key in given})
        if not token["special"]:
            token["normalized"] = False
            plain.append(name)
    sentinels = [id_ for id_, token in special.items() if NAME.fullmatch(token)]
    if plain and files.config.get("legacy") is not False and tokenizer_json.is_as_t5s(model, sentinels):
        content["pre_tokenizer"] = tokenizer_json.WORDS
    text = json_text.dumps(content, ensure_ascii=False)
    return hf_tokenizer.from_json(hf_tokenizer.temporary_file(text.encode(), "tokenizer.json"))


def _say_lost_sentinels(files: _Files, tokenizer: Tokenizer) -> None:
    """Prints which sentinels training cannot use, because one before them is missing."""
    numbers = sorted(number(match[1]) for token in files.added if (match := NAME.fullmatch(token)))
    lost = [number for number in numbers if number >= len(tokenizer.sentinels)]
    if lost:
        usable = f"only the {len(tokenizer.sentinels)} before it" if tokenizer.sentinels else "none of them"
        print(
            f"warning: {files.folder} has <extra_id_{lost[0]}> and no <extra_id_{len(tokenizer.sentinels)}>: span "
            f"corruption takes sentinels in their order, and can use {usable}.",
            file=sys.stderr,
        )


def _with_model(files: _Files, model_file: Path) -> Tokenizer:
    """The folder's vocabulary with this SentencePiece model.

    Raises:
      _OtherIds: if tokens that were added to it have other ids than in SeqIO's vocabulary.
      ValueError: as `read`.
    """
    folder = files.folder
    try:
        tokenizer = hf_tokenizer.from_file(model_file, None)
    except ValueError as error:
        raise ValueError(f"{folder} has a damaged tokenizer: {error}") from error
    assert tokenizer.model is not None
    pieces = [piece.piece for piece in sentencepiece_pb2.ModelProto.FromString(tokenizer.model).pieces]
    for id_, (entry, piece) in enumerate(zip(_entries(files.fast), pieces, strict=False)):
        if entry != piece and not (NAME.fullmatch(entry) and entry == piece.removeprefix("▁")):
            raise ValueError(
                f"{folder} holds two vocabularies: id {id_} is {piece!r} in spiece.model and {entry!r} in "
                "tokenizer.json. Give the right SentencePiece model with --vocab FILE."
            )
    named = [token for token in files.added if NAME.fullmatch(token)]
    behind = sum(1 for token in named if files.added[token] >= tokenizer.num_pieces)
    extra_ids = behind if named else files.config.get("extra_ids", tokenizer.extra_ids)
    tokenizer = dataclasses.replace(tokenizer, extra_ids=extra_ids)
    _check_added_tokens(files.added, tokenizer, pieces, folder)
    return tokenizer


def _num_sentinels(fast: Mapping[str, Any]) -> int:
    """How many of the last entries of tokenizer.json are sentinels; a piece of SentencePiece's begins with "▁"."""
    entries = _entries(fast)
    count = 0
    while count < len(entries) and entries[-1 - count] == f"<extra_id_{count}>":
        count += 1
    return count


def _entries(fast: Mapping[str, Any]) -> list[str]:
    """The tokens of a unigram tokenizer.json, empty for another one."""
    vocab = fast.get("model", {}).get("vocab")
    return [entry[0] for entry in vocab] if isinstance(vocab, list) else []


def _read_bytes(folder: Path, config: Mapping[str, Any], learns_sentinels: bool) -> dict[str, Any]:
    added = _added_tokens(folder, config, {})
    sentinels = {number(match[1]): id_ for token, id_ in added.items() if (match := NAME.fullmatch(token))}
    # Without ids transformers numbers them, 125 if nothing is said, upward.
    count = len(sentinels) or config.get("extra_ids", 125)
    upward = {i: NUM_BYTE_IDS + i for i in range(count)}
    downward = {i: NUM_BYTE_IDS + count - 1 - i for i in range(count)}
    sentinels = sentinels or upward
    if sentinels == downward or (learns_sentinels and sentinels == upward):
        return Tokenizer(None, NUM_BYTE_IDS, count).vocabulary
    if sentinels != upward:
        raise ValueError(
            f"{folder} gives its sentinels the ids {_some(sentinels)}; a ByteVocabulary of SeqIO's with {count} gives "
            f"them {_some(downward)}."
        )
    print(
        f"warning: {folder} numbers its {count} sentinels upward from {NUM_BYTE_IDS}, as transformers does for every "
        "ByT5; SeqIO counts down from the last id. Google's ByT5 knows none of them: it was trained with extra_ids=0, "
        "where 258, 257, … stand for masked spans. The vocabulary is taken with extra_ids=0; convert a model that was "
        f"trained otherwise with --family byt5 --extra_ids {count}.",
        file=sys.stderr,
    )
    return Tokenizer(None, NUM_BYTE_IDS, 0).vocabulary


def _added_tokens(folder: Path, config: Mapping[str, Any], fast: Mapping[str, Any]) -> dict[str, int]:
    """All tokens that the folder's files give an id, other than through the SentencePiece model.

    Raises:
      ValueError: if two files give one token two ids.
    """
    decoder = config.get("added_tokens_decoder", {})
    found = [
        ("tokenizer.json", {token["content"]: token["id"] for token in fast.get("added_tokens", ())}),
        ("tokenizer.json", {token: i for i, token in enumerate(_entries(fast)) if token.startswith("<extra_id_")}),
        ("tokenizer_config.json", {token["content"]: int(id_) for id_, token in decoder.items()}),
        ("added_tokens.json", read_json(folder / "added_tokens.json")),
    ]
    added: dict[str, tuple[int, str]] = {}
    for file, tokens in found:
        for token, id_ in tokens.items():
            before, other = added.setdefault(token, (id_, file))
            if before != id_:
                both = f"{other} gives {untrusted_files.shown(token)} the id {before}, and {file} gives it "
                raise ValueError(f"In {folder}, {both}{untrusted_files.shown(id_)}.")
    return {token: id_ for token, (id_, _) in added.items()}


def _check_added_tokens(added: Mapping[str, int], tokenizer: Tokenizer, pieces: list[str], folder: Path) -> None:
    """Raises ValueError if a token of the folder has another id in SeqIO's vocabulary, or none."""
    ours = {token: id_ for id_, token in tokenizer.special_tokens.items()}
    ours |= {piece: id_ for id_, piece in enumerate(pieces)}
    wrong = {token: id_ for token, id_ in added.items() if ours.get(token) != id_}
    if wrong:
        seqio = {token: ours[token] for token in wrong if token in ours}
        raise _OtherIds(
            f"{folder} gives {len(wrong)} tokens ids that SeqIO's SentencePieceVocabulary with {tokenizer.extra_ids} "
            f"sentinels does not give them: {_some(wrong)}; there "
            f"{f'they are {_some(seqio)}' if seqio else 'they have none'}. Take them out of the folder's tokenizer "
            "files if the data never contain them, or give a SentencePiece model that has them with --vocab FILE."
        )


def _some(ids: Mapping[Any, int]) -> str:
    shown = [f"{x if isinstance(x, str) else f'<extra_id_{x}>'} {ids[x]}" for x in [*ids][:3]]
    return ", ".join(shown) + (", …" if len(ids) > 3 else "")
