"""`limba words` writes words with labels for fine-tuning: of a treebank in CoNLL-U, or of a file of entities.

limba words ro_rrt-ud-train.conllu --out train.jsonl
limba words eng.train.conll --out train.jsonl
"""

import collections
import sys
from collections.abc import Sequence

from limba.addons.pairs import word_files
from limba.files import json_text, local_paths, named_flags, os_errors, written_files


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
    parser.add_argument("--overwrite", action="store_true", help="replace the file at OUT")
    flags = parser.parse_args(argv)
    try:
        write_words(flags.files, flags.out, flags.label, flags.overwrite)
    except BrokenPipeError:  # `| head`: `limba` ends without a word.
        raise
    except (ValueError, OSError) as error:
        sys.exit(f"error: {os_errors.describe(error) or error}")


def write_words(files: Sequence[str], out: str, label: str | None, overwrite: bool = False) -> None:
    """Writes JSON lines, and prints how many words have each label.

    A line has the lists `tokens` and `tags` for a classifier of words, and the texts `text` and `labels`, both with
    blanks between the words, for a T5 that writes labels.

    Raises:
      FileExistsError: if `out` is there, without `overwrite`.
      FileNotFoundError, ValueError: as `word_files.read`; for a label with a blank.
    """
    path = local_paths.local_path(written_files.named_by_flag(out))
    written_files.refuse_existing(path, "--out", overwrite)
    sentences = [sentence for file in files for sentence in word_files.read(file, label)]
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_files.writing(path) as temporary:
        lines = ({"tokens": x.words, "tags": x.labels, "text": x.text, "labels": " ".join(x.labels)} for x in sentences)
        content = "".join(f"{json_text.dumps(line, ensure_ascii=False)}\n" for line in lines)
        temporary.write_text(content, encoding="utf-8")
    said = written_files.messages_beside(path)
    counts = collections.Counter(label for sentence in sentences for label in sentence.labels)
    print(", ".join(f"{label} {count:,}" for label, count in counts.most_common()), file=said)
    print(f"{path}: {len(sentences):,} sentences, {counts.total():,} words, {len(counts):,} labels", file=said)
