"""What `limba vocab trim`, `extend` and `replace` do to an encoder for one language.

    python -m benchmarks.encoder_vocabularies --work runs/encoders --kind wordpiece 'runs/manuals/ru/{split}-*.jsonl' \\
        --others 'runs/manuals/de/{split}-*.jsonl' 'runs/manuals/ja/{split}-*.jsonl'

The first lines of benchmarks/trimmed_vocabularies.py name the commands for the corpora. A BERT of all texts is trimmed
to those of the language. One of the other texts alone gets pieces of the language, or its vocabulary. All have random
weights and bert-base's sizes. Tokens are those of the validation texts of the language, which no command sees.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import trimmed_vocabularies
from limba.addons.surgery import changed_model, extend, replace, trim, trimmed_pieces
from limba.addons.surgery.tokens import Tokens
from limba.addons.vocab_build import command as build_command
from limba.files import untrusted_json


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.encoder_vocabularies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("corpus", metavar="PATTERN", help="JSON lines of the language, with {split} in their name")
    parser.add_argument("--others", nargs="+", required=True, metavar="PATTERN", help="those of other languages")
    parser.add_argument("--work", required=True, type=Path, help="a folder for the vocabularies and the models")
    parser.add_argument("--kind", choices=("wordpiece", "bpe"), default="wordpiece")
    parser.add_argument("--vocab_size", type=int, default=16384, help="of each vocabulary that is built (16384)")
    parser.add_argument("--pieces", type=int, default=4096, help="that `extend` adds (4096)")
    flags = parser.parse_args(argv)
    own, others = ([x.replace("{split}", "train") for x in patterns] for patterns in ([flags.corpus], flags.others))
    work = flags.work / flags.kind
    given = work / "given/tokenizer.json"
    _build(given, flags.kind, own, flags.vocab_size)
    for name, files in (("all", [*own, *others]), ("others", others)):
        _build(work / name / "tokenizer.json", flags.kind, files, flags.vocab_size)
        if not (work / name / "config.json").exists():
            save_random(work / name, flags.vocab_size)
    trim.trim(str(work / "all"), str(work / "trimmed"), own, verify=False)
    extend.extend(str(work / "others"), str(work / "extended"), own, flags.pieces, verify=False)
    replace.replace(str(work / "others"), str(work / "replaced"), str(given), own, verify=False)
    lines = [*changed_model.lines([flags.corpus.replace("{split}", "validation")], "text", "tokens of the validation")]
    rows = []
    pairs = (
        ("all", "trimmed", trim.RECORD),
        ("others", "extended", extend.RECORD),
        ("others", "replaced", replace.RECORD),
    )
    for before, after, record_name in pairs:
        record = json.loads((work / after / record_name).read_text("utf-8"))
        for what, name in (("before", before), ("after", after)):
            used = usage(work / name / "tokenizer.json", lines)
            rows.append(trimmed_vocabularies.row(name, record[what], used))
    header = trimmed_vocabularies.HEADER
    print("\n".join("| " + " | ".join(cells) + " |" for cells in (header, ["---"] * len(header), *rows)))


def _build(file: Path, kind: str, files: Sequence[str], vocab_size: int) -> None:
    if not file.exists():
        words = ["--kind", kind, "--data_files", *files, "--vocab_size", str(vocab_size), "--out", str(file)]
        build_command.main(words)


def save_random(folder: Path, vocab_size: int) -> None:
    """Weights of bert-base's sizes beside a tokenizer.json."""
    import transformers

    transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=vocab_size)).save_pretrained(folder)


def usage(file: Path, lines: Sequence[str]) -> trimmed_pieces.Usage:
    """Tokens of texts."""
    tokens = Tokens(untrusted_json.read_object(file), {}, str(file))
    return trimmed_pieces.usage(tokens, map(tokens.encode, trimmed_pieces.batches(iter(lines))))


if __name__ == "__main__":
    main()
