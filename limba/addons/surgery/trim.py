"""`limba vocab trim`: leaves out the pieces of the vocabulary of a T5 or an encoder that a corpus does not use.

    limba vocab trim google/mt5-small exports/mt5-small-ro --corpus 'corpus/train-*.jsonl'
    limba vocab trim runs/mine runs/mine_trimmed --corpus corpus.txt --size 16384

SOURCE is a run of Limba, a Hugging Face folder, or ORG/NAME on the hub. OUT becomes the same: a run without optimizer
state, for INITIAL_CHECKPOINT_PATH, or a folder that transformers loads. docs/vocabularies.md says what is kept.
"""

import dataclasses
import functools
import os
from collections.abc import Sequence
from pathlib import Path

from limba.addons.surgery import changed_model, opened_model, replace
from limba.convert import from_hf, written_model
from limba.convert.model_files.hf import hf_folder
from limba.files import disk
from limba.files.output_folder import fingerprint

RECORD = "trim.json"


def trim(
    source: str,
    out: str,
    corpus: Sequence[str],
    *,
    text_column: str = "text",
    size: int | None = None,
    min_count: int = 1,
    ignore_config_keys: Sequence[str] = (),
    verify: bool = True,
) -> Path:
    """Writes the trimmed model, prints the report, and returns the folder or the checkpoint.

    Args:
      source: a run of Limba, a Hugging Face folder, or a name on the hub.
      corpus: files, patterns or URLs.
      size, min_count: as of `trimmed_pieces.choose`.
      ignore_config_keys: of JSON files of the source, those that have no effect.
      verify: read back what was written, and compare it.

    Raises:
      FileNotFoundError: if there is no source or corpus.
      ValueError: if the vocabulary cannot be trimmed, OUT is in use, or the disk is too small.
    """
    from limba.addons.surgery import trimmed_pieces

    # ------------------------------------------------------ request --------------------------------------------------
    _check_numbers(size, min_count)
    path = from_hf.find(source, with_runs=True)
    folder = written_model.choose_empty(out, path)
    opened = opened_model.open_model(path, ignore_config_keys)
    opened.check_can_change()
    of_lines = functools.partial(changed_model.lines, corpus, text_column)
    lines = of_lines("counting pieces")  # raises before anything is read, if there is no corpus

    # ------------------------------------------------------- pieces --------------------------------------------------
    before, model = opened.before, opened.model
    used = trimmed_pieces.usage(before, map(before.encode, trimmed_pieces.batches(lines)))
    if not used.lines:
        raise ValueError(f"The corpus {' '.join(corpus)} has no text in the column {text_column!r}: nothing to count.")
    kept = opened.choose(used.counts, min_count, size)
    after = opened.trimmed(kept)
    same = trimmed_pieces.SameTokens(before, after, kept)
    used_after = same.usage(of_lines("comparing tokens"))

    # ------------------------------------------------------- model ---------------------------------------------------
    new, rows = opened.with_trimmed(after, kept)
    bytes_each = model.dtype.itemsize if hf_folder.is_folder(path) else 4
    disk.require(folder, new.num_parameters * bytes_each)
    worst = opened.difference(new, rows, same.first)
    if not worst == 0:
        raise ValueError(
            f"Logits of pieces that are kept differ by {worst:g} from those of {path}; nothing is written."
        )
    both = (model, used, before), (new, used_after, after)
    sizes = [changed_model.sizes(m, usage, len(p), bytes_each) for m, usage, p in both]
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
    written = written_model.write(new, path, folder, RECORD, record, verify)
    print(f"{path} is trimmed to {written}.\n{changed_model.report(*sizes)}")
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


def main(argv: Sequence[str]) -> int:
    """Parses flags, and trims."""
    parser = replace.parser("limba vocab trim", __doc__)
    replace.add_corpus(parser, "files, patterns or URLs with the texts whose pieces are kept", True)
    size = "ids to keep, the most frequent ones; a multiple of 128, with sentinels (all that the corpus uses)"
    parser.add_argument("--size", type=int, metavar="N", help=size)
    seen = "leave out pieces that the corpus has less often (1)"
    parser.add_argument("--min_count", type=int, default=1, metavar="K", help=seen)
    flags = parser.parse_args(argv)
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Nothing here needs an accelerator.
    numbers = {"size": flags.size, "min_count": flags.min_count}
    trim(flags.source, flags.out, flags.corpus, **numbers, **replace.options(flags))
    return 0
