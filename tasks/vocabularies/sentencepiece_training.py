"""Training a SentencePiece vocabulary with T5's special tokens. `limba vocab build` and add-ons do it."""

import contextlib
import functools
import io
import os
import pathlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from limba.files import written_files
from limba.tasks.sources import corpora
from limba.tasks.vocabularies import alphabets, training_text, word_breaks
from limba.tasks.vocabularies import normalization as normalizations
from limba.tasks.vocabularies.sentencepiece_models import NUM_SENTINELS

# Pieces that a user cannot define: T5's special tokens, sentinels, and the bytes of the fallback.
_RESERVED = re.compile(r"<(pad|unk|/?s|extra_id_\d+|0x[0-9A-F]{2})>")


def train_vocabulary(
    source: corpora.ShardedSource,
    out: str | os.PathLike[str],
    *,
    vocab_size: int = 32128,
    split: str = "train",
    text_column: str = "text",
    num_sentences: int = 1_000_000,
    max_documents: int | None = None,
    sample_seed: int = 0,
    byte_fallback: bool = False,
    user_symbols: Sequence[str] = (),
    character_coverage: float | None = None,
    normalization: str = "nfkc",
    overwrite: bool = False,
) -> pathlib.Path:
    """Trains a unigram SentencePiece model with T5's ids: padding 0, EOS 1, unknown 2, no BOS.

    The file has no sentinels: `SentencePieceVocabulary(out, extra_ids=100)` and Hugging Face's T5 tokenizers add
    them behind its last piece, which makes `vocab_size` ids.

    Args:
      source, split, text_column: where the text is.
      out: the file to write, appears only when complete.
      vocab_size: size with the 100 sentinels, a multiple of 128.
      num_sentences: size of the random sample of lines that SentencePiece learns from; it keeps them in memory.
      max_documents: documents to read, from all shards in turn; None reads the whole split.
      sample_seed: of the sample; the sample depends on this seed and the corpus only.
      byte_fallback: spell characters that are not in the vocabulary as bytes, instead of as unknown.
      user_symbols: pieces that are never split, such as mode tokens; they get the ids from 3 on.
      character_coverage: share of characters that get a piece of their own; None gives one to all letters, accents,
        numbers and punctuation, and of large scripts, emoji and symbols to the frequent ones.
      normalization: "nfkc", as T5's and mT5's, which reads full-width `，` as `,`; or "none", which keeps characters.
      overwrite: replace a file that is there; runs that were trained with it cannot resume without it.

    Raises:
      FileExistsError: if `out` is there, without `overwrite`.
      ValueError: for a size that is not a multiple of 128, a number that makes no sense or a symbol that cannot be; or
        if the corpus is too small for the size.
      OSError: if the corpus cannot be read, or `out` not be written.
    """
    training_text.check_size(vocab_size, "sentinels")
    training_text.check_coverage(character_coverage)
    _check_normalization(normalization)
    _check_symbols(user_symbols)
    text = training_text.TrainingText(source, split, text_column, num_sentences, max_documents, sample_seed)
    out = training_text.choose_file(out, "spiece.model", overwrite)
    read = normalizations.NORMALIZATIONS[normalization]
    characters, before = alphabets.Characters(read), alphabets.Characters(normalizations.composed_as(read))
    lines = text.lines(characters, before)
    print(f"training SentencePiece on {len(lines):,} lines", file=sys.stderr)
    letters: dict[str, Any] = {"character_coverage": character_coverage}
    if character_coverage is None:
        required = alphabets.alphabet(characters.counts, None)
        letters = {"character_coverage": alphabets.FREQUENT, "required_chars": "".join(required)}
    try:
        model = _train(
            lines,
            vocab_size - NUM_SENTINELS,
            byte_fallback=byte_fallback,
            user_defined_symbols=list(user_symbols),
            normalization=normalization,
            **letters,
        )
    except RuntimeError as error:
        raise _explain(error, vocab_size, split) from error
    with written_files.writing(out) as temporary:
        temporary.write_bytes(model)
    opened = sentencepiece.SentencePieceProcessor(model_proto=model)
    _say_normalized(opened, before)
    alphabets.say_left_out(opened.encode, opened.unk_id(), before, "--byte_fallback spells them as bytes.")
    if normalization == "none":
        remedy = "--normalization nfkc reads a blank in its place."
        word_breaks.say_kept(lambda texts: opened.encode(list(texts), out_type=str), lines, remedy)
    return out


def _say_normalized(opened: Any, characters: alphabets.Characters) -> None:
    """Prints how many characters of its training text a vocabulary reads as others."""
    counts = characters.counts
    changed = normalizations.changed(functools.partial(normalizations.by_sentencepiece, opened), counts)
    if said := normalizations.describe(changed, counts):
        print(f"normalized: {said}; T5's and mT5's do so too (--normalization none keeps all)", file=sys.stderr)


def _train(lines: Sequence[str], num_pieces: int, normalization: str, **options: Any) -> bytes:
    """The SentencePiece model of these lines; RuntimeError if they do not suffice for the number of pieces."""
    model = io.BytesIO()
    with _rule(normalization) as rule:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=num_pieces,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            max_sentence_length=training_text.MAX_SENTENCE_BYTES,
            minloglevel=2,
            **rule,
            **options,
        )
    return _without_path(model.getvalue())


def _explain(error: RuntimeError, vocab_size: int, split: str) -> Exception:
    """SentencePiece's complaint about the size, in terms of `vocab_size`."""
    if largest := re.search(r"value <= (\d+)", str(error)):
        return training_text.too_small(split, vocab_size, int(largest.group(1)) + NUM_SENTINELS)
    if characters := re.search(r"smaller than required_chars\. \d+ vs (\d+)", str(error)):
        return training_text.no_room(split, vocab_size, int(characters.group(1)) + NUM_SENTINELS)
    return error


def _check_symbols(symbols: Sequence[str]) -> None:
    for symbol in symbols:
        if not symbol or re.search(r"[\s▁]", symbol):
            raise ValueError(f"The user symbol {symbol!r} is empty or has a space in it; SentencePiece would split it.")
        if _RESERVED.fullmatch(symbol):
            raise ValueError(
                f"The user symbol {symbol!r} has a meaning of its own: T5's special tokens are there, and the "
                "sentinels are added behind the last piece when the model is opened. Leave it out."
            )
    if doubled := sorted({symbol for symbol in symbols if list(symbols).count(symbol) > 1}):
        raise ValueError(f"The user symbol {doubled[0]!r} is given twice; once is enough.")


def _check_normalization(name: str) -> None:
    """Raises ValueError for a name that is not one of `normalization.NORMALIZATIONS`."""
    if name not in normalizations.NORMALIZATIONS:
        raise ValueError(f"normalization is {name!r}; give {' or '.join(map(repr, normalizations.NORMALIZATIONS))}.")


@contextlib.contextmanager
def _rule(name: str) -> Iterator[dict[str, Any]]:
    """The options of SentencePiece's trainer for one of `normalization.NORMALIZATIONS`.

    SentencePiece's own "identity" keeps `▁`, which transformers' slow tokenizer sets before a text, and line
    breaks, which its class of T5 drops. So "none" has a table of white space.
    """
    if name == "nfkc":
        yield {"normalization_rule_name": "nmt_nfkc"}
        return
    with tempfile.TemporaryDirectory(prefix="limba-vocabulary-") as folder:
        table = pathlib.Path(folder) / "white_space.tsv"
        spaces = [c for c in map(chr, range(1, 0x3001)) if c.isspace() and c != " "]
        table.write_text("".join(f"{ord(c):X}\t20\n" for c in (*spaces, "▁")), "utf-8")
        yield {"normalization_rule_tsv": str(table)}


def _without_path(model: bytes) -> bytes:
    """A trained model without the path of the table, which differs by machine; the same bytes if it has none."""
    opened = sentencepiece_model_pb2.ModelProto.FromString(model)
    if not opened.normalizer_spec.normalization_rule_tsv:
        return model
    opened.normalizer_spec.normalization_rule_tsv = ""
    return opened.SerializeToString(deterministic=True)
