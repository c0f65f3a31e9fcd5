"""`limba vocab trim`: leaves out the pieces of a T5's vocabulary that a corpus does not use.

    limba vocab trim google/mt5-small exports/mt5-small-ro --corpus 'corpus/train-*.jsonl'
    limba vocab trim runs/mine runs/mine_trimmed --corpus corpus.txt --size 16384

SOURCE is a run of Limba, a Hugging Face folder, or ORG/NAME on the hub. OUT becomes the same: a run without optimizer
state, for INITIAL_CHECKPOINT_PATH, or a folder that transformers loads. docs/vocabularies.md says what is kept.
"""

import argparse
import dataclasses
import functools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert import from_hf, to_hf
from convert.compare import trimmed_logits
from convert.exports.t5_export import T5Export
from convert.families import heads
from convert.model_files import any_format, trimmed_model
from convert.model_files.hf import hf_folder, hf_tokenizer
from convert.model_files.hf.hf_tokenizer import Tokenizer
from convert.model_files.model import T5Model
from convert.t5x import limba_run
from convert.tensors import tensor_parts
from limba.checkpoint_files import saved_tensors
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.files import disk
from limba.files.output_folder import choose_out, complete_or_absent, fingerprint
from limba.network.flops import forward_flops

RECORD = "trim.json"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a model before or after."""

    pieces: int
    rows: int
    lines: int
    tokens: int
    unknown: int
    in_bytes: int
    parameters: int
    megabytes: float
    forward_flops: float
    logits_share: float


def trim(
    source: str,
    out: str,
    corpus: Sequence[str],
    *,
    text_column: str = "text",
    size: int | None = None,
    min_count: int = 1,
    verify: bool = True,
) -> Path:
    """Writes the trimmed model, prints the report, and returns the folder or the checkpoint.

    Args:
      source: a run of Limba, a Hugging Face folder, or a name on the hub.
      corpus: files, patterns or URLs.
      size, min_count: as of `trimmed_pieces.choose`.
      verify: read back what was written, and compare it.

    Raises:
      FileNotFoundError: if there is no source or corpus.
      ValueError: if the vocabulary cannot be trimmed, OUT is in use, or the disk is too small.
    """
    from tasks.vocabularies import trimmed_pieces

    # ------------------------------------------------------ request --------------------------------------------------
    _check_numbers(size, min_count)
    path = from_hf.find(source, with_runs=True)
    folder = _choose_empty(out, path)
    model, tokenizer = _open(path)
    of_lines = functools.partial(_lines, corpus, text_column)
    lines = of_lines("counting pieces")  # raises before anything is read, if there is no corpus

    # ------------------------------------------------------- pieces --------------------------------------------------
    assert tokenizer.model is not None
    before = trimmed_pieces.Pieces(tokenizer.model)
    used = before.usage(map(before.encode, trimmed_pieces.batches(lines)))
    if not used.lines:
        raise ValueError(f"The corpus {' '.join(corpus)} has no text in the column {text_column!r}: nothing to count.")
    extra_ids = tokenizer.extra_ids
    kept = trimmed_pieces.choose(before, used.counts, tokenizer.own_sentinels, extra_ids, min_count, size)
    after = trimmed_pieces.trimmed(before, kept)
    same = trimmed_pieces.SameTokens(before, after, kept)
    used_after = same.usage(of_lines("comparing tokens"))

    # ------------------------------------------------------- model ---------------------------------------------------
    file = hf_tokenizer.temporary_file(after.model)
    rows = np.concatenate([kept, len(before) + np.arange(extra_ids)])  # T5's padding of rows is left out
    new = trimmed_model.trimmed(model, rows, hf_tokenizer.describe(file, extra_ids))
    is_folder = hf_folder.is_folder(path)
    bytes_each = model.dtype.itemsize if is_folder else 4
    disk.require(folder, new.num_parameters * bytes_each)
    worst = trimmed_logits.difference(model, new, rows, same.first)
    if not worst == 0:
        raise ValueError(
            f"Logits of pieces that are kept differ by {worst:g} from those of {path}; nothing is written."
        )
    sizes = [_sizes(m, u, len(p), bytes_each) for m, u, p in ((model, used, before), (new, used_after, after))]
    record = {
        "source": str(model.path),
        "fingerprint": fingerprint(model.path),
        "corpus": list(corpus),
        "size": size,
        "min_count": min_count,
        "lines_with_the_same_tokens": same.compared,
        "largest_difference_of_logits": worst,
        "before": dataclasses.asdict(sizes[0]),
        "after": dataclasses.asdict(sizes[1]),
        "kept": kept.tolist(),
    }
    written = (_write_folder if is_folder else _write_run)(new, folder, record, verify)
    print(f"{path} is trimmed to {written}.\n{_report(*sizes)}")
    print(
        f"{same.compared:,} of {used.lines:,} lines have only pieces that are kept, and the same tokens as before; the "
        f"logits of all pieces that are kept differ by {worst:g} on {len(same.first)} lines."
    )
    return written


def _check_numbers(size: int | None, min_count: int) -> None:
    if min_count < 1:
        raise ValueError(f"--min_count is {min_count}; it is at least 1.")
    if size is not None and (size < 1 or size % 128):
        raise ValueError(f"--size is {size}; give a multiple of 128, such as {max(1, -(-size // 128)) * 128}.")


def _choose_empty(out: str, source: Path) -> Path:
    """OUT. Raises ValueError if something is there; what a killed `limba vocab trim` left is not."""
    folder = choose_out(out, source)
    if folder.exists() and any(not file.name.endswith(".unfinished") for file in folder.iterdir()):
        raise ValueError(f"{folder} is not empty; choose another OUT, or remove it.")
    return folder


def _open(path: Path) -> tuple[T5Model, Tokenizer]:
    """The model and its SentencePiece model. Raises ValueError if it has none that can be trimmed."""
    if not any_format.has_decoder(path):
        raise ValueError(
            f"{path} is an encoder, whose vocabulary is WordPiece or byte-level BPE; only T5s with a SentencePiece "
            "model (T5, mT5, umT5) can be trimmed."
        )
    try:
        model: Any = any_format.open_model(path)
        vocabulary = any_format.known_vocabulary(model)
    except (FileNotFoundError, ValueError) as error:
        if "--vocab" not in str(error):  # which converters have
            raise
        raise FileNotFoundError(
            f"{path} has no SentencePiece model: copy the one that the model was trained with there, as spiece.model."
        ) from error
    if model.head != heads.OF_T5:
        raise ValueError(f"{path} is a classifier, which has no logits of pieces; trim the T5 that it was made of.")
    tokenizer = hf_tokenizer.from_vocabulary(vocabulary)
    if tokenizer.model_file is None:
        raise ValueError(f"{path} reads bytes (byT5): its vocabulary has {tokenizer.vocab_size} ids, nothing to trim.")
    if tokenizer.model is None:
        raise ValueError(
            f"{path} has a tokenizer.json that no SentencePiece model equals ({tokenizer.model_file}); only "
            "vocabularies of a SentencePiece model can be trimmed."
        )
    from sentencepiece import sentencepiece_model_pb2

    trainer = sentencepiece_model_pb2.ModelProto.FromString(tokenizer.model).trainer_spec
    if trainer.model_type != trainer.UNIGRAM:
        raise ValueError(
            f"The SentencePiece model of {path} is of kind {trainer.ModelType.Name(trainer.model_type)}, whose pieces "
            "are made of each other; only UNIGRAM can be trimmed."
        )
    return model, tokenizer


def _lines(corpus: Sequence[str], text_column: str, what: str) -> Iterator[str]:
    """The lines of the corpus, with a progress bar. Raises ValueError or OSError at once if there is none."""
    from tasks.sources import corpora
    from tasks.vocabularies import training_text

    source = corpora.HuggingFaceSource({"train": list(corpus)}, [text_column])
    source.check("train")
    print(what, file=sys.stderr)
    return filter(None, training_text.sentences(training_text.TrainingText(source, text_column=text_column)))


# -------------------------------------------------------- writing -----------------------------------------------------


def _write_folder(model: T5Model, out: Path, record: dict[str, Any], verify: bool) -> Path:
    """A Hugging Face folder, with weights of the dtype that they have."""
    export = T5Export(model)
    for warning in export.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    with complete_or_absent(out, record) as folder:
        to_hf.write_files(folder, export, ("safetensors",), model.dtype.name, int(to_hf.SHARD_GB * 1e9))
        if verify:
            to_hf.check_files(folder, export, ("safetensors",))
        to_hf.write_json(folder / RECORD, record)
    return out


def _write_run(model: T5Model, out: Path, record: dict[str, Any], verify: bool) -> Path:
    """A run with a checkpoint of the same step. Optimizers begin again: their state is of another loss and network."""
    tensors: dict[str, SavedTensor] = {f"target/{name}": tensor for name, tensor in model.tensors.items()}
    tensors["state/step"] = saved_tensors.from_array(np.int32(model.step))
    network = "scalable_t5" if model.info.get("network", {}).get("scan_layers") else None
    checkpoint = limba_run.write_run(model, tensors, network, out, verify, overwrite=False)
    to_hf.write_json(out / RECORD, record)
    return checkpoint


# -------------------------------------------------------- report ------------------------------------------------------


def _sizes(model: T5Model, usage: Any, num_pieces: int, bytes_each: int) -> Sizes:
    lengths = {"inputs": 512, "targets": 114} | dict(model.info.get("feature_lengths") or {})
    inputs, targets, fields = lengths["inputs"], lengths["targets"], vars(model.config)
    flops = forward_flops(fields, inputs, targets)
    logits = flops - forward_flops({**fields, "vocab_size": 0}, inputs, targets)
    return Sizes(
        pieces=num_pieces,
        rows=model.config.vocab_size,
        lines=usage.lines,
        tokens=usage.tokens,
        unknown=usage.unknown,
        in_bytes=usage.in_bytes,
        parameters=model.num_parameters,
        megabytes=round(sum(map(_num_elements, model.tensors.values())) * bytes_each / 1e6, 3),
        forward_flops=flops,
        logits_share=logits / flops,
    )


def _num_elements(tensor: SavedTensor) -> int:
    return tensor_parts.num_bytes(tensor) // np.dtype(tensor.dtype).itemsize


def _report(before: Sizes, after: Sizes) -> str:
    """A table with a column for before and one for after."""
    show: dict[str, Callable[[Sizes], str]] = {
        "pieces": lambda x: f"{x.pieces:,}",
        "rows of the embedding": lambda x: f"{x.rows:,}",
        "tokens per line": lambda x: f"{x.tokens / x.lines:.3f}",
        "unknown tokens": lambda x: f"{x.unknown:,}",
        "tokens that are bytes": lambda x: f"{x.in_bytes:,}",
        "parameters": lambda x: f"{x.parameters:,}",
        "megabytes": lambda x: f"{x.megabytes:,.1f}",
        "GFLOPs of a forward pass": lambda x: f"{x.forward_flops / 1e9:,.3f}",
        "share of logits in them": lambda x: f"{x.logits_share:.1%}",
    }
    lines = [f"{'':26}{'before':>16}{'after':>16}"]
    lines += [f"{name:26}{value(before):>16}{value(after):>16}" for name, value in show.items()]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Parses flags, and trims."""
    parser = argparse.ArgumentParser(
        prog="limba vocab trim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="a run of Limba, a Hugging Face folder, or ORG/NAME on the hub"
    )
    parser.add_argument("out", metavar="OUT", help="the run's directory or the folder to write")
    what = "files, patterns or URLs with the texts whose pieces are kept"
    parser.add_argument("--corpus", nargs="+", action="extend", required=True, metavar="F", help=what)
    parser.add_argument("--text_column", default="text", help="the column with the text (text)")
    size = "ids to keep, the most frequent ones; a multiple of 128, with sentinels (all that the corpus uses)"
    parser.add_argument("--size", type=int, metavar="N", help=size)
    seen = "leave out pieces that the corpus has less often (1)"
    parser.add_argument("--min_count", type=int, default=1, metavar="K", help=seen)
    parser.add_argument("--no-check", action="store_true", help="write without reading back and comparing")
    flags = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing here needs an accelerator.
    numbers = {"size": flags.size, "min_count": flags.min_count, "verify": not flags.no_check}
    trim(flags.source, flags.out, flags.corpus, text_column=flags.text_column, **numbers)
    return 0
