"""`limba scoreboard MODEL … --text FILE --pairs FILE`: measures runs, averages, exports and folders of transformers."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from limba.files import json_text, number_ranges, written_files

# Of `scored_rows.KINDS`, whose import takes seconds.
_SCORES = ("words", "whole", "pieces", "continuation")
_NAMES = ("scoreboard.json", "scoreboard.md", "scoreboard.svg")
_SETS = ("text", "pairs", "retrieval", "words")


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `limba scoreboard` that ask to measure."""
    group = parser.add_argument_group(
        "measure models", "of runs, averages, exports and folders of transformers, on files (docs/scoreboard.md)"
    )
    for name, what in (
        ("text", "texts, one a line, or a table: loss by character, and the rank of each word in its blank"),
        ("pairs", "minimal pairs, as of `limba eval --pairs`: how often the right sentence is preferred"),
        ("retrieval", "tables with queries and answers (docs/embeddings.md): how often the answer is the nearest"),
        ("words", "treebanks (.conllu), entities (.conll, .bio) or tables of words with labels: how many are right"),
        ("train_words", "the files that models learned the labels of --words from: each word's label as a baseline"),
        ("train", "the training corpus: leaks of the files into it, and n-grams of it as a baseline"),
    ):
        group.add_argument(f"--{name}", nargs="+", action="extend", default=[], metavar="FILE", help=what)
    for name, what in (("text", "texts of --text"), ("train", "documents of --train")):
        group.add_argument(f"--{name}_column", metavar="NAME", help=f"the column with the {what} (text)")
    for name, what in (("good", "right sentences"), ("bad", "wrong sentences"), ("phenomenon", "phenomena")):
        group.add_argument(f"--{name}_column", metavar="NAME", help=f"the column with the {what} of --pairs")
    group.add_argument(
        "--word_label", metavar="NAME", help="of --words: upos, feats or a feature of CoNLL-U, or a column (upos, tags)"
    )
    group.add_argument("--score", choices=_SCORES, help="what is scored of a pair (docs/scores.md)")
    group.add_argument("--mode", metavar="TEXT", help="text in front of the inputs of a T5: '[NLU]'")
    group.add_argument(
        "--ngram_tokens", type=int, metavar="N", help="tokens of --train that n-grams are of (5,000,000)"
    )
    group.add_argument(
        "--compare", action="store_true", help="also the differences from the first model, by the paired bootstrap"
    )
    group.add_argument("--output_dir", metavar="DIR", help=f"a folder for {', '.join(_NAMES[:-1])} and {_NAMES[-1]}")
    group.add_argument("--overwrite", action="store_true", help="replace these files in DIR")


def is_asked(flags: argparse.Namespace) -> bool:
    """Whether a file to measure on is given."""
    return any(getattr(flags, name) for name in _SETS)


def check_flags(flags: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Ends the process for flags that do not go together."""
    of_sets = {"text_column": "text", "train_column": "train", "ngram_tokens": "train", "word_label": "words"}
    of_sets["train_words"] = "words"
    of_sets |= dict.fromkeys(("good_column", "bad_column", "phenomenon_column", "score"), "pairs")
    for name, of in of_sets.items():
        if getattr(flags, name) not in (None, []) and not getattr(flags, of):
            parser.error(f"--{name} goes with --{of} FILE.")
    if not is_asked(flags):
        for name in ("train", "output_dir", "mode", "compare", "overwrite"):
            if getattr(flags, name):
                parser.error(f"--{name} goes with files to measure on: --text, --pairs, --retrieval or --words FILE.")
        return
    for name in ("out", "picture"):
        if getattr(flags, name) is not None:
            parser.error(f"--{name} is for evaluations that were made; what is measured goes to --output_dir DIR.")


def run(flags: argparse.Namespace, models: Sequence[str], which: str) -> int:
    """Measures models as the flags say, prints the tables and writes the files.

    Args:
      which: of the checkpoints of runs: "latest", "all", or steps such as "500,1000".

    Raises:
      ValueError, OSError: for bad input, before a model is measured; if nothing could be measured.
    """
    if flags.ngram_tokens is not None:
        number_ranges.check("--ngram_tokens", flags.ngram_tokens, number_ranges.AT_LEAST_1)
    folder = _output_folder(flags)
    # Models take seconds to import, which a table of evaluations that were made does not need.
    from limba.addons.pairs.scoreboard import board_measuring, board_picture

    board = board_measuring.measure(flags, models, which)
    print(board.text(), end="")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        contents = (json_text.dumps(board.json(), indent=1, ensure_ascii=False) + "\n", board.markdown())
        for name, content in zip(_NAMES, (*contents, board_picture.draw(board)), strict=True):
            written_files.write_text(folder / name, content)
        print(f"{', '.join(_NAMES)} are in {folder}.")
    return 0


def _output_folder(flags: argparse.Namespace) -> Path | None:
    if flags.output_dir is None:
        return None
    folder = Path(flags.output_dir).expanduser()
    if folder.is_file():
        raise ValueError(f"--output_dir {folder} is a file; name a folder.")
    for name in _NAMES:
        written_files.refuse_link(folder / name)
        written_files.refuse_existing(folder / name, "--output_dir", flags.overwrite)
    return folder
