"""WordPiece and byte-level BPE vocabularies with BERT's special tokens, for masked language models.

What is written is a folder that transformers' `AutoTokenizer` loads: tokenizer.json and tokenizer_config.json.
"""

import os
import pathlib
import sys
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

from limba.files import json_text, local_paths, storage
from limba.tasks.vocabularies import alphabets, normalization, tokenizer_files, training_text, word_breaks

# In the order of their ids, from 0.
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_CONFIG = "tokenizer_config.json"
# A piece is worth an id if it is seen more than once.
_MIN_FREQUENCY = 2
_PREFIX = "##"
# Scripts whose marks are accents: a word without them is the same word, misspelt. COMBINING marks have no letter.
_WITH_ACCENTS = ("LATIN", "GREEK", "CYRILLIC", "COMBINING")
_OF_BERT = "BERT's vocabularies do so too (--kind bpe keeps all)"
_WITHOUT_ACCENTS = (
    "--no-keep_accents and BERT's uncased vocabularies do so (--keep_accents keeps marks, --kind bpe all)"
)
# Longer words are [UNK], which bounds the time for a text. The library's 100 is too short where words have no blanks
# between them: a clause of Thai, Lao, Khmer or Burmese is a word.
_MOST_CHARACTERS = 1000


def train_wordpiece(
    text: training_text.TrainingText,
    out: str | os.PathLike[str],
    *,
    vocab_size: int = 32128,
    lowercase: bool = False,
    keep_accents: bool = True,
    drop_vowel_signs: bool = False,
    character_coverage: float | None = None,
    overwrite: bool = False,
) -> pathlib.Path:
    """Trains BERT's kind of vocabulary: words are split at white space and punctuation, and pieces inside of a word
    begin with "##". The same text gives the same file.

    Args:
      out: the tokenizer.json to write, appears only when complete; tokenizer_config.json is written beside it.
      vocab_size: with the five special tokens, a multiple of 128.
      lowercase: read all text in lower case, as the uncased BERT.
      keep_accents: whether ș and s are two letters.
      drop_vowel_signs: without accents drop also the marks of scripts in which they are vowels and letters.
      character_coverage: share of the text's characters that get a token; words with others are [UNK]. None is as of
        `sentencepiece_training.train_vocabulary`.
      overwrite: replace files that are there; runs that were trained with them cannot resume without them.

    Raises:
      FileExistsError: if a file is there, without `overwrite`.
      ValueError: for a size that is not a multiple of 128, another name than tokenizer.json, or a corpus that is too
        small for the size or has more characters; for vowel signs that `keep_accents` drops and nothing asked for.
      OSError: if the corpus cannot be read, or `out` not be written.
    """
    from tokenizers import decoders, normalizers, trainers

    training_text.check_size(vocab_size, "special tokens")
    training_text.check_coverage(character_coverage)
    file = _choose_file(out, overwrite)
    normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=not keep_accents)
    read = normalizer.normalize_str
    characters, before = alphabets.Characters(read), alphabets.Characters(normalization.composed_as(read))
    lines = text.lines(characters, before)
    print(f"training WordPiece on {len(lines):,} lines", file=sys.stderr)
    alphabet = alphabets.alphabet(characters.counts, character_coverage)
    if not (keep_accents or drop_vowel_signs):
        _check_marks(before, read)
    # Of what was asked for a trace is said too: й and ї are no accented и and і.
    about, trace = (_OF_BERT, normalization.TRACE) if keep_accents else (_WITHOUT_ACCENTS, 0)
    _say_normalized(before, read, about, trace)

    def train(size: int, first_tokens: Sequence[str]) -> dict[str, int]:
        tokenizer = _wordpiece({}, normalizer)
        trainer = trainers.WordPieceTrainer(
            vocab_size=size,
            min_frequency=_MIN_FREQUENCY,
            show_progress=False,
            special_tokens=list(first_tokens),
            initial_alphabet=alphabet,
            limit_alphabet=len(alphabet),
            continuing_subword_prefix=_PREFIX,
        )
        tokenizer.train_from_iterator(lines, trainer, length=len(lines))
        return tokenizer.get_vocab()

    # The trainer numbers the characters inside of words as it meets them, in the order of a hash table, and breaks ties
    # by these numbers. So a first pass, without merges, finds these characters, and the second gets them in order. Rare
    # ones that the sample has only at the beginning of words, or not at all, are added.
    inside = {token for token in train(0, SPECIAL_TOKENS) if token.startswith(_PREFIX)}
    if character_coverage is None:
        inside |= {_PREFIX + c for c in alphabet if not _stands_alone(c)}
    vocab = train(vocab_size, [*SPECIAL_TOKENS, *alphabet, *sorted(inside)])
    _check_trained(vocab, vocab_size, text.split)
    tokenizer = _wordpiece(vocab, normalizer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.decoder = decoders.WordPiece(prefix=_PREFIX)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        return [encoded.ids for encoded in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    written = _write(tokenizer, file, ["input_ids", "token_type_ids", "attention_mask"])
    remedy = "A word with one is [UNK]; --kind bpe spells every text as bytes."
    alphabets.say_left_out(encode, vocab["[UNK]"], before, remedy)
    return written


def _wordpiece(vocab: dict[str, int], normalizer: Any) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    options = {"continuing_subword_prefix": _PREFIX, "max_input_chars_per_word": _MOST_CHARACTERS}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", **options))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def train_bpe(
    text: training_text.TrainingText,
    out: str | os.PathLike[str],
    *,
    vocab_size: int = 32128,
    overwrite: bool = False,
) -> pathlib.Path:
    """Trains the kind of vocabulary of RoBERTa and ModernBERT: pieces of bytes, of text in Unicode's form NFC.

    It spells every text, and decodes to the same text in NFC. The same text gives the same file.

    Args:
      out, vocab_size, overwrite: see `train_wordpiece`.

    Raises:
      FileExistsError, ValueError, OSError: see `train_wordpiece`.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    training_text.check_size(vocab_size, "special tokens")
    bytes_ = pre_tokenizers.ByteLevel.alphabet()
    if vocab_size < len(bytes_) + len(SPECIAL_TOKENS):
        raise ValueError(
            f"vocab_size is {vocab_size}, too small for 256 bytes and {len(SPECIAL_TOKENS)} special tokens; set it to "
            f"{training_text.round_up(len(bytes_) + len(SPECIAL_TOKENS))} or more."
        )
    file = _choose_file(out, overwrite)
    before = alphabets.Characters(normalization.NORMALIZATIONS["none"])
    lines = text.lines(before)
    _say_normalized(before, normalizers.NFC().normalize_str, "texts are in Unicode's form NFC")
    print(f"training byte-level BPE on {len(lines):,} lines", file=sys.stderr)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    # A mask stands for a piece with its space: the space before one that a user types belongs to it.
    special_tokens = [AddedToken(token, lstrip=token == "[MASK]", special=True) for token in SPECIAL_TOKENS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=_MIN_FREQUENCY,
        show_progress=False,
        special_tokens=special_tokens,
        initial_alphabet=bytes_,
    )
    tokenizer.train_from_iterator(lines, trainer, length=len(lines))
    _check_trained(tokenizer.get_vocab(), vocab_size, text.split)
    tokenizer.decoder = decoders.ByteLevel()

    def pieces(texts: Sequence[str]) -> list[list[str]]:
        found = zip(texts, tokenizer.encode_batch(list(texts), add_special_tokens=False), strict=True)
        return [[line[begin:end] for begin, end in encoded.offsets] for line, encoded in found]

    word_breaks.say_kept(pieces, lines, "Put blanks in its place, or take --kind sentencepiece, which reads a blank.")
    return _write(tokenizer, file, ["input_ids", "attention_mask"])


def _stands_alone(character: str) -> bool:
    """Whether BERT makes a word of it: of a Chinese character, of punctuation, and of all signs of ASCII."""
    is_sign = character.isascii() and not character.isalnum()
    return is_sign or unicodedata.category(character)[0] == "P" or alphabets.script_of(character) == "CJK"


def _say_normalized(
    before: alphabets.Characters, normalize: Callable[[str], str], about: str, trace: float = normalization.TRACE
) -> None:
    """Prints which characters a normalization drops or changes; capitals in lower case were asked for."""
    changed = normalization.changed(lambda text: normalize(text).strip(), before.counts)
    changed = {c: read_as for c, read_as in changed.items() if read_as != c.lower()}
    if said := normalization.describe(changed, before.counts, trace):
        print(f"normalized: {said}; {about}", file=sys.stderr)
    word_breaks.say_dropped(before, normalize)


def _check_marks(before: alphabets.Characters, normalize: Callable[[str], str]) -> None:
    """Raises ValueError if a normalization drops marks that are letters of words: vowels of Hindi, Thai, Hebrew …"""
    lost = normalization.without_marks(normalize, before.counts)
    letters = {c: rest for c, rest in lost.items() if alphabets.script_of(c) not in _WITH_ACCENTS}
    if said := normalization.describe(letters, before.counts):
        scripts = ", ".join(sorted({alphabets.script_of(c).capitalize() for c in letters}))
        raise ValueError(
            f"--no-keep_accents is for accents of Latin, Greek and Cyrillic letters, and the text has {scripts}, where "
            f"marks are vowels and letters: {said}. Words that differ in them would be one. Leave --no-keep_accents "
            "out, or add --drop_vowel_signs if that is meant."
        )


def _check_trained(vocab: dict[str, int], vocab_size: int, split: str) -> None:
    if len(vocab) > vocab_size:
        raise training_text.no_room(split, vocab_size, len(vocab))
    if len(vocab) < vocab_size:
        raise training_text.too_small(split, vocab_size, len(vocab))
    assert [vocab[token] for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))


# -------------------------------------------------------- the files --------------------------------------------------


def _choose_file(out: str | os.PathLike[str], overwrite: bool) -> pathlib.Path:
    named = local_paths.local_path(out)
    if named.name != tokenizer_files.FILE and not named.is_dir():
        raise ValueError(
            f"The file to write is {named.name}, and transformers looks for {tokenizer_files.FILE}: give --out "
            f"{named.with_suffix('') / tokenizer_files.FILE}."
        )
    file = training_text.choose_file(named, tokenizer_files.FILE, overwrite)
    if (other := file.with_name(_CONFIG)).exists() and not overwrite:
        raise FileExistsError(
            f"{other} exists, and belongs to another tokenizer. Choose another folder for --out, or give --overwrite."
        )
    return file


def _write(tokenizer: Any, file: pathlib.Path, model_input_names: Sequence[str]) -> pathlib.Path:
    from tokenizers import processors

    cls, sep = ((token, SPECIAL_TOKENS.index(token)) for token in ("[CLS]", "[SEP]"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[cls, sep]
    )
    config = {
        # Of both versions of transformers; BertTokenizer's would set normalizers of its own.
        "tokenizer_class": "PreTrainedTokenizerFast",
        # The versions have other defaults. RoBERTa and ModernBERT take no second kind of token_type_ids.
        "model_input_names": model_input_names,
        **{f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS},
        # The decoder of WordPiece does it already, and bytes need none.
        "clean_up_tokenization_spaces": False,
    }
    storage.replace_text(file.with_name(_CONFIG), json_text.dumps(config, indent=2) + "\n")
    # Last: a folder without it is none.
    storage.replace_text(file, tokenizer.to_str(pretty=True) + "\n")
    return file
