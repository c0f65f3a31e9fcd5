"""`limba words` writes words with labels for fine-tuning: of a treebank in CoNLL-U, or of a file of entities.

limba words ro_rrt-ud-train.conllu --out train.jsonl
limba words eng.train.conll --out train.jsonl --test eng.testb.conll
"""

import collections
import sys
from collections.abc import Sequence

from limba.addons.pairs import word_files
from limba.addons.pairs.scoreboard.majority_labels import MajorityLabels
from limba.addons.pairs.word_files import LabelledSentence
from limba.files import json_text, local_paths, named_flags, os_errors, written_files
from limba.files.untrusted_files import cut
from limba.tasks.metrics import tagging_metrics

# Kinds of labels whose counts are printed; tags with all features are some thousands.
_MOST_SHOWN = 1000


def main(argv: Sequence[str]) -> None:
    """Writes words with labels as the flags say."""
    parser = named_flags.Parser(prog="limba words", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help=f".conllu, a word a line ({', '.join(word_files.WORD_A_LINE)}), or a table",
    )
    parser.add_argument("--out", required=True, metavar="FILE", help="the file to write: train.jsonl")
    parser.add_argument(
        "--label",
        metavar="NAME",
        help="of CoNLL-U: upos, feats, or a feature such as Number (upos); of a table a column",
    )
    parser.add_argument(
        "--test", metavar="FILE", help="also print what a table of the words and their labels gets right of this file"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the file at OUT")
    flags = parser.parse_args(argv)
    try:
        write_words(flags.files, flags.out, flags.label, flags.overwrite, flags.test)
    except BrokenPipeError:  # `| head`: `limba` ends without a word.
        raise
    except (ValueError, OSError) as error:
        sys.exit(f"error: {os_errors.describe(error) or error}")


def write_words(
    files: Sequence[str], out: str, label: str | None, overwrite: bool = False, test: str | None = None
) -> None:
    """Writes JSON lines, and prints how many words have each label.

    A line has the lists `tokens` and `tags` for a classifier of words, and the texts `text` and `labels`, both with
    blanks between the words, for a T5 that writes labels.

    Args:
      test: a file of which also is printed what the baselines get right that are learned from `files`; None is none.

    Raises:
      FileExistsError: if `out` is there, without `overwrite`.
      FileNotFoundError, ValueError: as `word_files.read`; for a label with a blank.
    """
    path = local_paths.local_path(written_files.named_by_flag(out))
    written_files.refuse_existing(path, "--out", overwrite)
    sentences = [sentence for file in files for sentence in word_files.read(file, label)]
    tested = [] if test is None else word_files.read(test, label)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_files.writing(path) as temporary:
        lines = ({"tokens": x.words, "tags": x.labels, "text": x.text, "labels": " ".join(x.labels)} for x in sentences)
        content = "".join(f"{json_text.dumps(line, ensure_ascii=False)}\n" for line in lines)
        temporary.write_text(content, encoding="utf-8")
    said = written_files.messages_beside(path)
    counts = collections.Counter(label for sentence in sentences for label in sentence.labels)
    shown = [f"{cut(label)} {count:,}" for label, count in counts.most_common(_MOST_SHOWN)]
    more = f" and {len(counts) - len(shown):,} more labels" if len(counts) > len(shown) else ""
    print(", ".join(shown) + more, file=said)
    print(f"{path}: {len(sentences):,} sentences, {counts.total():,} words, {len(counts):,} labels", file=said)
    if tested:
        print(f"{test}: {_baselines(sentences, tested)}", file=said)


def _baselines(sentences: Sequence[LabelledSentence], tested: Sequence[LabelledSentence]) -> str:
    """What the most frequent label, and that of each word, get right."""
    table = MajorityLabels([x.words for x in sentences], [x.labels for x in sentences])
    wanted, given = [x.labels for x in tested], [table.of(x.words) for x in tested]
    alone = [[table.label] * len(x.words) for x in tested]
    of_label, of_words = (tagging_metrics.token_accuracy(wanted, x)["accuracy"] for x in (alone, given))
    words = [word for x in tested for word in x.words]
    new = 100 * sum(word not in table for word in words) / len(words)
    found = f"{cut(table.label)} everywhere is right for {of_label:.1f} % of {len(words):,} words, "
    found += "each word's most frequent"
    found += f" label for {of_words:.1f} %"
    if tagging_metrics.are_bio(sorted({label for labels in wanted for label in labels})):
        found += f" (entity F1 {tagging_metrics.entity_f1(wanted, given)['entity_f1']:.1f} %)"
    return f"{found}; {new:.1f} % of the words are new"
