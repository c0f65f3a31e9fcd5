"""Does transformers make the ids of a folder that Limba makes with the vocabulary that it read there?

`comparison.compare` gives texts to Limba's readers of both models. If these misread a folder, an export of the run
repeats the mistake, and both agree. Here transformers' class reads the folder's files.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from limba.convert.compare import auto_tokenizer, transformers_library
from limba.convert.compare.comparison_rows import Comparison
from limba.convert.families.config_files import t5_config
from limba.convert.model_files.hf import hf_tokenizer, tokenizer_folder
from limba.convert.model_files.model import EncoderModel, Model, T5Model
from limba.data import token_rows
from limba.files.untrusted_files import shown_list

_WHAT = "tokens that differ"
# Beside the check's own text: the beginning of a text, capitals and accents, spaces, and a pair.
_TEXTS = (("the house",), ("The  house is big. ",), ("Ștefan, două",), ("the house", "a dog 12"))


def texts_with(text: str) -> list[tuple[str, ...]]:
    """The texts of a comparison, each alone or with a second one, where `text` is a further one."""
    return [(text,), *_TEXTS]


def compare(
    label: str, model: Model, text: str, folder: Path | None = None, theirs: auto_tokenizer.Found | None = None
) -> Iterator[Comparison]:
    """The row of a folder's special tokens and texts.

    Args:
      label: of the model in the table.
      model: with the vocabulary that Limba read.
      text: a further one.
      folder: which transformers reads; None is the one of the model, where it has the vocabulary.
      theirs: what it made of the folder and `texts_with(text)`, if it has read them already.
    """
    if folder is None and model.folder is not None:
        folder = model.folder.tokenizer
    if folder is None or model.vocabulary is None:
        return
    what, version = f"{_WHAT}, {label}", transformers_library.version()
    if reason := "transformers is not installed" if version is None else _not_alike(model, folder):
        yield Comparison(what, None, 0, reason)
        return
    texts = texts_with(text)
    try:
        theirs = theirs or auto_tokenizer.read(folder, texts)
    except ValueError as error:
        yield Comparison(what, None, 0, f"transformers {version} does not load the tokenizer: {str(error)[:200]}")
        return
    problems = list((_of_t5 if model.family.has_decoder else _of_encoder)(model, theirs, texts))
    note = f"of {len(texts)} texts and special tokens in {theirs.class_name} of transformers {version}"
    yield Comparison(what, len(problems), 0, "; ".join([note, *problems[:2]]))


def compare_all(a: Model, b: Model) -> Iterator[Comparison]:
    """The row of texts in the vocabularies of two models, which are made of all their tokens; none where neither has
    one."""
    from limba.tasks.vocabularies import equality, tokenizer_texts

    of_a, of_b = (_opened(model) for model in (a, b))
    if of_a is None or of_b is None:
        if of_a is not of_b:
            label = "A" if of_a is None else "B"
            yield Comparison("texts with other tokens", None, 0, f"not compared: {label} has no vocabulary")
        return
    note, differ = "of whole vocabularies", 0
    if not equality.same_vocabulary(of_a, of_b):
        texts = dict.fromkeys(text for x in (of_a, of_b) for text in tokenizer_texts.texts_of(x).plain)
        encode_a, encode_b = tokenizer_texts.encoder_of(of_a), tokenizer_texts.encoder_of(of_b)
        found = tokenizer_texts.differences([*texts], encode_a, encode_b, is_tie=tokenizer_texts.ties_of(of_a))
        differ, note = len(found.found), found.describe("A", "B") if found else f"of {found.num_texts:,}"
    yield Comparison("texts with other tokens", differ, 0, note)


def _opened(model: Model) -> Any:
    from limba.tasks.pretraining import masked_text
    from limba.tasks.vocabularies import TokenizerVocabulary

    if model.vocabulary is None:
        return None
    if model.family.has_decoder:
        return masked_text.open_vocabulary(model.vocabulary)
    return TokenizerVocabulary(model.vocabulary_file or "")


def _not_alike(model: Model, folder: Path) -> str:
    """Why transformers gives other tokens than Limba, which a warning has said; "" if it does not."""
    from limba.tasks.vocabularies import beside_tokenizer

    if not model.family.has_decoder:
        is_jiebas = beside_tokenizer.class_of(folder).lower().startswith("roformer")
        return "RoFormer's tokenizer splits texts with jieba first" if is_jiebas else ""
    return "; ".join(hf_tokenizer.from_vocabulary(model.vocabulary or {}).warnings)


def _of_encoder(model: EncoderModel, theirs: auto_tokenizer.Found, texts: Sequence[Sequence[str]]) -> Iterator[str]:
    from limba.tasks.vocabularies import TokenizerVocabulary

    file = model.vocabulary_file or ""
    opened, exchanged = TokenizerVocabulary(file), {0: model.pad_id, model.pad_id: 0}
    ours = {role: exchanged.get(id_, id_) for role, id_ in tokenizer_folder.special_ids(file).items()}
    for role, id_ in ours.items():
        if theirs.special_ids.get(role, id_) != id_:
            yield f"{role} is {id_} in Limba, and {theirs.special_ids[role]} there"
    for text, row, ids in _rows(opened, theirs, texts):
        found = [exchanged.get(id_, id_) for id_ in ids]
        if row != found:
            yield _differ(text, found, row)


def _rows(
    vocabulary: Any, theirs: auto_tokenizer.Found, texts: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], list[int], list[int]]]:
    """A text, its row in transformers, and the one of Limba: each whole, and each cut."""
    for rows, most in ((theirs.rows, None), (theirs.cut_rows, auto_tokenizer.MOST)):
        for text, row in zip(texts, rows, strict=True):
            if len(text) == 1 or token_rows.has_pairs(vocabulary):  # A T5 has none.
                yield text, row, token_rows.of_vocabulary(vocabulary, [text], most)[0].ids


def _of_t5(model: T5Model, theirs: auto_tokenizer.Found, texts: Sequence[Sequence[str]]) -> Iterator[str]:
    from limba.tasks.pretraining import masked_text

    vocabulary = masked_text.open_vocabulary(model.vocabulary or {})
    for role, token in hf_tokenizer.from_vocabulary(model.vocabulary or {}).special._asdict().items():
        ours = None if token is None else t5_config.in_folder(token.id, model.pad_id)
        if ours is not None and theirs.special_ids.get(role, ours) != ours:
            yield f"{role} is {ours} in Limba, and {theirs.special_ids[role]} there"
    for text, row, ids in _rows(vocabulary, theirs, texts):
        found = [t5_config.in_folder(id_, model.pad_id) for id_ in ids]
        if row != found:
            yield _differ(text, found, row)


def _differ(text: Sequence[str], ours: Sequence[int], theirs: Sequence[int]) -> str:
    return f"{' and '.join(map(repr, text))[:40]} is {shown_list(ours)} in Limba, and {shown_list(theirs)} there"
