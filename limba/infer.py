"""`limba infer`: lets a trained model answer lines of text, or fill the blanks in them.

    limba infer --run_dir runs/quickstart/model --input "Return the <extra_id_0> of the list."
    limba infer --run_dir runs/quickstart/model --input_file questions.txt --output_file answers.jsonl

Blanks are T5's sentinels <extra_id_0>, <extra_id_1> … in order. A line without blanks is answered as it is.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gin
import jax
import numpy as np
from tqdm import tqdm

from limba import checkpoints, gin_utils
from limba.data import Batch
from limba.eval import load_model_params
from limba.models import EncoderDecoderModel, Vocabulary
from limba.partitioning import PjitPartitioner

logger = logging.getLogger(__name__)

_SENTINEL = re.compile(r"<extra_id_(\d+)>")


def infer(
    *,
    model: EncoderDecoderModel,
    restore_checkpoint_cfg: checkpoints.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    inputs: Sequence[str],
    output_file: str | None = None,
    max_inputs_length: int = 512,
    max_decode_length: int = 114,
    batch_size: int = 8,
    random_seed: int = 0,
) -> list[dict[str, Any]]:
    """Decodes lines of text.

    Args:
      model: network, vocabularies and decoding.
      restore_checkpoint_cfg: the checkpoint.
      partitioner: mesh and rules.
      inputs: lines.
      output_file: JSON lines `{"input", "prediction", "filled", "score"}`; None prints them.
      max_inputs_length: longer inputs are cut, and counted in a warning.
      max_decode_length: tokens of an answer.
      batch_size: lines at a time.
      random_seed: for sampling.

    Returns:
      What was written.

    Raises:
      ValueError: without inputs or a checkpoint.
    """
    if not inputs:
        raise ValueError("Nothing to answer: give --input TEXT or --input_file FILE.")
    data_axis = partitioner.num_data_shards
    batch_size = -(-batch_size // data_axis) * data_axis
    params, shardings = load_model_params(model, partitioner, restore_checkpoint_cfg)
    predict = partitioner.jit(
        lambda p, batch, rng: model.predict_batch_with_aux(p, batch, rng),
        in_shardings=(shardings, partitioner.data_sharding, partitioner.replicated),
        out_shardings=partitioner.replicated,
    )

    results = []
    batches = list(_batches(model.input_vocabulary, inputs, max_inputs_length, max_decode_length, batch_size))
    for i, (lines, batch) in enumerate(tqdm(batches, desc="infer", unit="batch", disable=len(batches) == 1)):
        rng = jax.random.fold_in(jax.random.key(random_seed), i)
        tokens, aux = jax.device_get(predict(params, partitioner.shard_batch(batch), rng))
        for line, row, score in zip(lines, tokens, aux["scores"], strict=False):
            prediction = decode_row(model.output_vocabulary, row)
            results.append(
                {
                    "input": line,
                    "prediction": prediction,
                    "filled": fill_blanks(line, prediction),
                    "score": float(score),
                }
            )
    _write(results, output_file)
    return results


def _batches(
    vocabulary: Vocabulary, inputs: Sequence[str], max_length: int, max_decode_length: int, batch_size: int
) -> Iterator[tuple[Sequence[str], Batch]]:
    """Encoded lines with EOS, `[batch_size, length]`; the last batch is filled up with empty rows."""
    encoded = [[*vocabulary.encode(line), vocabulary.eos_id or 1] for line in inputs]
    cut = sum(len(ids) > max_length for ids in encoded)
    if cut:
        logger.warning("%d of %d inputs are longer than %d tokens and were cut.", cut, len(inputs), max_length)
    # One length for all batches compiles once; a multiple of 32 serves many runs from the compilation cache.
    length = min(max_length, -(-max(len(ids) for ids in encoded) // 32) * 32)
    for start in range(0, len(inputs), batch_size):
        tokens = np.zeros((batch_size, length), np.int32)
        for row, ids in enumerate(encoded[start : start + batch_size]):
            tokens[row, : len(ids)] = ids[:length]
        answers = np.zeros((batch_size, max_decode_length), np.int32)  # says how long an answer may be
        yield inputs[start : start + batch_size], {"encoder_input_tokens": tokens, "decoder_input_tokens": answers}


def decode_row(vocabulary: Vocabulary, row: np.ndarray) -> str:
    """Text of a row of tokens that ends at EOS or padding; sentinels are kept visible."""
    ids = []
    for token in row.tolist():
        if token in (0, vocabulary.eos_id):
            break
        ids.append(token)
    return vocabulary.decode(ids)


def fill_blanks(text: str, prediction: str) -> str:
    """Puts the spans that follow each sentinel in `prediction` into the blanks of `text`.

    A blank that the prediction does not mention stays as it is. Without blanks, the prediction itself is returned.
    """
    if not _SENTINEL.search(text):
        return prediction
    pieces = _SENTINEL.split(prediction)
    spans = {number: span.strip() for number, span in zip(pieces[1::2], pieces[2::2], strict=True)}
    return _SENTINEL.sub(lambda match: spans.get(match[1], match[0]), text)


def _write(results: Sequence[dict[str, Any]], output_file: str | None) -> None:
    if output_file is None:
        for result in results:
            print(f"{result['input']}\n  -> {result['filled']}")
        return
    path = Path(output_file).expanduser().absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in results), encoding="utf-8")
    temporary.replace(path)
    print(f"{len(results)} answers in {path}")


def _read_lines(file: str) -> list[str]:
    if file == "-":
        return [line.rstrip("\n") for line in sys.stdin]
    path = Path(file)
    if not path.is_file():
        raise FileNotFoundError(
            f"--input_file {file} does not exist; give a file with one input a line, or - for stdin."
        )
    return path.read_text(encoding="utf-8").splitlines()


def main(argv: Sequence[str]) -> int:
    """Parses flags and gin, and decodes."""
    parser = gin_utils.argument_parser("infer", __doc__ or "")
    parser.add_argument("--run_dir", help="a run's directory or one checkpoint; brings its own gin configuration")
    parser.add_argument("--input", action="append", default=[], metavar="TEXT", help="a line to answer; repeatable")
    parser.add_argument("--input_file", metavar="FILE", help="one input a line; - reads standard input")
    parser.add_argument("--output_file", metavar="FILE", help="JSON lines; printed if not given")
    flags = parser.parse_args(gin_utils.rewrite_gin_flags(argv))
    if not flags.run_dir and not flags.gin_file:
        parser.error("give --run_dir RUN, or --gin_file with a model and gin/runs/infer.gin")
    inputs = flags.input + (_read_lines(flags.input_file) if flags.input_file else [])

    files, bindings = list(flags.gin_file), list(flags.gin_bindings)
    if flags.run_dir:
        checkpoint = checkpoints.find_checkpoint(flags.run_dir)
        files = [str(checkpoint / "run" / "config.gin"), "gin/runs/infer.gin", *files]
        bindings.insert(0, f"CHECKPOINT_PATH = {str(checkpoint)!r}")
        vocabulary = checkpoint / "run" / "spiece.model"
        if vocabulary.is_file():
            bindings.insert(1, f"seqio.SentencePieceVocabulary.sentencepiece_model_file = {str(vocabulary)!r}")
    configured = gin.external_configurable(infer, module="limba.infer")
    gin_utils.parse_gin_flags(files, bindings, flags.gin_search_paths)
    gin_utils.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"")
    given: dict[str, Any] = {"output_file": flags.output_file} if flags.output_file else {}
    configured(inputs=inputs, **given)
    return 0


if __name__ == "__main__":
    from limba import infer as _this

    gin_utils.run_command(_this.main)
