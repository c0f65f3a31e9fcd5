"""What `limba vocab trim` saves with one multilingual vocabulary on corpora of several languages.

    apt-get download manpages-ru manpages-de manpages-ja
    for package in manpages-*.deb; do dpkg-deb -x "$package" pages; done
    for language in ru de ja; do
        python -m benchmarks.manual_pages pages --language $language --out runs/manuals/$language
    done
    python -m benchmarks.trimmed_vocabularies --work runs/trimmed ru='runs/manuals/ru/{split}-*.jsonl' \\
        de='runs/manuals/de/{split}-*.jsonl' ja='runs/manuals/ja/{split}-*.jsonl'

It builds a vocabulary of all corpora, saves a random mT5 of mt5-small's sizes with it, trims that to the training texts
of each language, and prints a table. Tokens are those of the validation texts, which trimming does not see.
"""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

from convert.model_files.hf import hf_tokenizer
from limba.addons.surgery import changed_model, trim, trimmed_pieces
from limba.addons.vocab_build import command as build_command

# mt5-small without its vocabulary.
SIZES = {"d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8, "num_heads": 6}
HEADER = ("corpus", "pieces", "tokens a text", "unknown", "parameters", "megabytes", "GFLOPs a row", "logits' share")


@dataclasses.dataclass(frozen=True)
class Corpus:
    """A language, and the pattern of its files, with {split} in it."""

    name: str
    pattern: str

    def files(self, split: str) -> str:
        return self.pattern.replace("{split}", split)

    def usage(self, spiece: Path) -> trimmed_pieces.Usage:
        """Tokens of the validation texts."""
        pieces = trimmed_pieces.Pieces(spiece.read_bytes())
        lines = changed_model.lines([self.files("validation")], "text", f"tokens of {self.name}")
        return trimmed_pieces.usage(pieces, map(pieces.encode, trimmed_pieces.batches(lines)))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.trimmed_vocabularies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("corpora", nargs="+", metavar="NAME=PATTERN", help="JSON lines with {split} in their name")
    parser.add_argument("--work", required=True, type=Path, help="a folder for the vocabulary and the models")
    parser.add_argument("--vocab_size", type=int, default=32128, help="of all languages together (32128)")
    flags = parser.parse_args(argv)
    corpora = [Corpus(*text.partition("=")[::2]) for text in flags.corpora]
    for corpus in corpora:
        if "{split}" not in corpus.pattern:
            parser.error(f"{corpus.name}={corpus.pattern}: the pattern has {{split}} for train and validation")
    spiece = flags.work / "vocab/spiece.model"
    if not spiece.exists():
        files = [corpus.files("train") for corpus in corpora]
        build_command.main(["--data_files", *files, "--vocab_size", str(flags.vocab_size), "--out", str(spiece)])
    whole = flags.work / "multilingual"
    if not (whole / "model.safetensors").exists():
        save_random(whole, spiece, flags.vocab_size)
    rows = []
    for corpus in corpora:
        out = flags.work / corpus.name
        if not (out / trim.RECORD).exists():
            trim.trim(str(whole), str(out), [corpus.files("train")])
        record = json.loads((out / trim.RECORD).read_text("utf-8"))
        for what, file in (("before", spiece), ("after", out / hf_tokenizer.SPIECE)):
            rows.append(row(f"{corpus.name} {what}", record[what], corpus.usage(file)))
    print("\n".join("| " + " | ".join(cells) + " |" for cells in (HEADER, ["---"] * len(HEADER), *rows)))


def save_random(folder: Path, spiece: Path, vocab_size: int) -> None:
    """A folder of Hugging Face with random weights."""
    import transformers

    config = transformers.MT5Config(vocab_size=vocab_size, **SIZES)
    transformers.MT5ForConditionalGeneration(config).save_pretrained(folder)
    hf_tokenizer.write(hf_tokenizer.from_vocabulary(hf_tokenizer.describe(spiece)), folder, model_type="mt5")


def row(name: str, sizes: dict[str, float], usage: trimmed_pieces.Usage) -> list[str]:
    return [
        name,
        f"{sizes['pieces']:,}",
        f"{usage.tokens / usage.lines:.1f}",
        f"{usage.unknown / usage.tokens:.2%}",
        f"{sizes['parameters'] / 1e6:.1f} M",
        f"{sizes['megabytes']:.0f}",
        f"{sizes['forward_flops'] / 1e9:.1f}",
        f"{sizes['logits_share']:.0%}",
    ]


if __name__ == "__main__":
    main()
