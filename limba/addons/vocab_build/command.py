"""`limba vocab build` trains a vocabulary on a corpus: SentencePiece for T5, WordPiece or byte-level BPE for BERT.

limba vocab build --data_files 'corpus/train-*.jsonl' --vocab_size 8192 --out vocab/spiece.model
limba vocab build --kind wordpiece --data_files 'corpus/train-*.jsonl' --vocab_size 8192 --out vocab/tokenizer.json
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from limba.addons.vocab_build import tokenizer_training
from limba.files import named_flags, os_errors, written_files
from limba.tasks.sources import corpora
from limba.tasks.vocabularies import sentencepiece_models, sentencepiece_training
from limba.tasks.vocabularies.normalization import NORMALIZATIONS
from limba.tasks.vocabularies.training_text import TrainingText

# Flags that not all kinds have; None is a flag that was not given.
_KINDS_OF_FLAGS = {
    "byte_fallback": ("sentencepiece",),
    "user_symbols": ("sentencepiece",),
    "normalization": ("sentencepiece",),
    "character_coverage": ("sentencepiece", "wordpiece"),
    "lowercase": ("wordpiece",),
    "keep_accents": ("wordpiece",),
    "drop_vowel_signs": ("wordpiece",),
}


def main(argv: Sequence[str]) -> None:
    """Trains a vocabulary as the flags say."""
    parser = _parser()
    options = vars(parser.parse_args(argv))
    kind = options.pop("kind")
    for flag, kinds in _KINDS_OF_FLAGS.items():
        if options[flag] is None:
            del options[flag]
        elif kind not in kinds:
            given = f"no-{flag}" if options[flag] is False else flag
            parser.error(f"--{given} is a flag of --kind {' and '.join(kinds)}, and --kind is {kind}; leave it out")
    source = _source(options)
    try:
        out = _train(kind, source, options)
    except BrokenPipeError:  # `| head`: `limba` ends without a word.
        raise
    except (ValueError, OSError, RuntimeError) as error:  # A shard that stays broken is a RuntimeError.
        sys.exit(f"error: {os_errors.describe(error) or error}")
    if kind == "sentencepiece":
        special = f"{sentencepiece_models.NUM_SENTINELS} of them sentinels"
    else:
        special = f"{len(tokenizer_training.SPECIAL_TOKENS)} of them special tokens"
    print(f"{out}: {options['vocab_size']} ids, {special}", file=written_files.messages_beside(out))


def _parser() -> argparse.ArgumentParser:
    parser = named_flags.Parser(prog="limba vocab build", description=(__doc__ or "").partition("\n")[0])
    text = parser.add_mutually_exclusive_group(required=True)
    text.add_argument("--data_files", nargs="+", action="extend", metavar="F", help="files, patterns or URLs, the text")
    text.add_argument("--dataset", metavar="ORG/NAME", help="a data set on the Hugging Face hub")
    parser.add_argument("--config", metavar="NAME", help="its configuration")
    parser.add_argument("--revision", default="main", help="its branch, tag or commit (main)")
    parser.add_argument("--split", default="train", help="its split (train)")
    kinds = ("sentencepiece", "wordpiece", "bpe")
    what = "sentencepiece for T5 (the default); wordpiece, or bpe of bytes, for masked language models"
    parser.add_argument("--kind", choices=kinds, default=kinds[0], help=what)
    out = "the file to write, such as vocab/spiece.model; vocab/tokenizer.json for wordpiece and bpe"
    parser.add_argument("--out", required=True, help=out)
    size = "with 100 sentinels, or 5 special tokens; a multiple of 128 (32128)"
    parser.add_argument("--vocab_size", type=int, default=32128, help=size)
    parser.add_argument("--text_column", default="text", help="the column with the text (text)")
    parser.add_argument("--num_sentences", type=int, default=1_000_000, help="lines to sample from all (1000000)")
    parser.add_argument("--max_documents", type=int, metavar="N", help="read no more, from all files in turn (all)")
    parser.add_argument("--sample_seed", type=int, default=0, help="of the sample of lines (0)")
    coverage = "share of characters kept (all letters and punctuation, frequent symbols); not for bpe"
    parser.add_argument("--character_coverage", type=float, metavar="SHARE", help=coverage)
    parser.add_argument("--overwrite", action="store_true", help="replace the file at OUT")
    only = parser.add_argument_group("of --kind sentencepiece")
    only.add_argument("--byte_fallback", action="store_true", default=None, help="spell unknown characters as bytes")
    only.add_argument("--user_symbols", nargs="+", action="extend", metavar="S", help="pieces that are never split")
    normalization = "nfkc as T5 and mT5, which reads full-width forms as ASCII (the default); none keeps all characters"
    only.add_argument("--normalization", choices=tuple(NORMALIZATIONS), help=normalization)
    only = parser.add_argument_group("of --kind wordpiece")
    only.add_argument("--lowercase", action="store_true", default=None, help="read all text in lower case")
    accents = "whether ș and s are two letters (they are)"
    only.add_argument("--keep_accents", action=argparse.BooleanOptionalAction, help=accents)
    signs = "with --no-keep_accents: drop vowel signs of Hindi, Thai, Arabic, Hebrew … too, which is refused without it"
    only.add_argument("--drop_vowel_signs", action="store_true", default=None, help=signs)
    return parser


def _source(options: dict[str, Any]) -> corpora.ShardedSource:
    """The corpus; takes its flags out of `options`."""
    data_files, dataset, config, revision = map(options.pop, ("data_files", "dataset", "config", "revision"))
    split, columns = options["split"], [options["text_column"]]
    if dataset:
        whole = {split: split}  # The documents that are held out for evaluations are read as well.
        return corpora.HubSource(dataset, config, columns, revision=revision, splits=whole)
    return corpora.HuggingFaceSource({split: data_files}, columns)


def _train(kind: str, source: corpora.ShardedSource, options: dict[str, Any]) -> pathlib.Path:
    if kind == "sentencepiece":
        if options["out"].endswith(".json"):
            raise ValueError(
                f"--out is {options['out']}, and a SentencePiece model is no JSON: name it spiece.model, or give "
                "--kind wordpiece or bpe."
            )
        return sentencepiece_training.train_vocabulary(source, **options)
    of_text = ("split", "text_column", "num_sentences", "max_documents", "sample_seed")
    text = TrainingText(source, **{name: options[name] for name in of_text})
    others = {name: value for name, value in options.items() if name not in of_text}
    train = tokenizer_training.train_wordpiece if kind == "wordpiece" else tokenizer_training.train_bpe
    return train(text, **others)
