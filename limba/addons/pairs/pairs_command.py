"""`limba pairs` makes minimal pairs about agreement of a treebank in CoNLL-U, for `limba eval RUN --pairs`.

limba pairs ro_rrt-ud-*.conllu --out pairs.jsonl
"""

import collections
import dataclasses
import sys
from collections.abc import Sequence

from limba.addons.pairs import agreement_pairs, conllu_files
from limba.addons.pairs.agreement_pairs import Pair
from limba.files import json_text, local_paths, named_flags, os_errors, written_files


def main(argv: Sequence[str]) -> None:
    """Makes pairs as the flags say."""
    parser = named_flags.Parser(prog="limba pairs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", metavar="CONLLU", help="files of a treebank, read together")
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write: pairs.jsonl")
    most = "at most this number of pairs of each phenomenon, evenly from the directions of change (1000)"
    parser.add_argument("--per_phenomenon", type=int, default=1000, metavar="N", help=most)
    words = "sentences with more words are left out (40)"
    parser.add_argument("--most_words", type=int, default=40, metavar="N", help=words)
    parser.add_argument("--overwrite", action="store_true", help="replace the file at OUT")
    flags = parser.parse_args(argv)
    for name in ("per_phenomenon", "most_words"):
        if getattr(flags, name) < 1:
            parser.error(f"--{name} is {getattr(flags, name)}; it is a number of at least 1.")
    try:
        write_pairs(flags.files, flags.out, flags.per_phenomenon, flags.most_words, flags.overwrite)
    except BrokenPipeError:  # `| head`: `limba` ends without a word.
        raise
    except (ValueError, OSError) as error:
        sys.exit(f"error: {os_errors.describe(error) or error}")


def write_pairs(files: Sequence[str], out: str, most: int, most_words: int, overwrite: bool = False) -> list[Pair]:
    """Writes the pairs of treebanks as JSON lines, and prints how many there are of each kind.

    Args:
      most: of each phenomenon.
      most_words: of a sentence.
      overwrite: replace a file that is there.

    Raises:
      FileExistsError: if `out` is there, without `overwrite`.
      FileNotFoundError, ValueError: if a file cannot be read; if no pair can be made.
    """
    path = local_paths.local_path(written_files.named_by_flag(out))
    if path.is_dir():
        raise ValueError(f"--out {path} is a folder; name the file to write, such as {path / 'pairs.jsonl'}.")
    written_files.refuse_existing(path, "--out", overwrite)
    sentences = list(conllu_files.read(files))
    lexicon = agreement_pairs.Lexicon(sentences)
    found = (pair for sentence in sentences for pair in agreement_pairs.pairs_of(sentence, lexicon, most_words))
    chosen = agreement_pairs.choose(found, most)
    if not chosen:
        have_features = sum(bool(word.features) for sentence in sentences for word in sentence.words)
        raise ValueError(
            f"No pair can be made of {len(sentences):,} sentences, {have_features:,} of whose words have features. "
            "Pairs need subjects (nsubj) and verbs or adjectives with Number, Person or Gender, and other forms of the "
            "same lemmas: give a larger treebank, or one with lemmas and features."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_files.writing(path) as temporary:
        lines = (json_text.dumps(dataclasses.asdict(pair), ensure_ascii=False) for pair in chosen)
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    said = written_files.messages_beside(path)
    counts = collections.Counter((pair.phenomenon, f"{pair.value} to {pair.other_value}") for pair in chosen)
    for (phenomenon, direction), count in sorted(counts.items()):
        print(f"{phenomenon}, {direction}: {count:,}", file=said)
    print(f"{path}: {len(chosen):,} pairs of {len(sentences):,} sentences", file=said)
    return chosen
