"""The configuration that a run's checkpoint carries, for commands that are given `--run_dir` in place of gin files."""

import argparse
from collections.abc import Sequence

from limba import checkpoints, distributed, gin_utils, storage


def newest_checkpoint(run_dir: str) -> str:
    """The checkpoint that a command means by a run's directory, as worker 0 sees it.

    Raises:
      FileNotFoundError: if there is none.
    """
    return distributed.from_first("checkpoint", lambda: str(checkpoints.find_checkpoint(run_dir)))


def parse(flags: argparse.Namespace, gin_file: str, bindings: Sequence[str] = ()) -> None:
    """Parses what a run was, then a command's gin file and bindings, then what the flags have.

    The vocabulary is the checkpoint's own file: where the run had its may not be on this machine.

    Args:
      flags: with `run_dir`, a run's directory or one of its checkpoints; None leaves it to `--gin_file`.
      gin_file: of the command, such as "gin/runs/infer_text.gin".
      bindings: of the command.
    """
    files, given = list(flags.gin_file), [*bindings, *flags.gin_bindings]
    if flags.run_dir:
        checkpoint = storage.as_path(newest_checkpoint(flags.run_dir))
        files = [str(checkpoint / "run" / "config.gin"), gin_file, *files]
        vocabulary = checkpoint / "run" / "spiece.model"
        if storage.is_file(vocabulary):
            given.insert(0, f"seqio.SentencePieceVocabulary.sentencepiece_model_file = {str(vocabulary)!r}")
    gin_utils.parse_gin_flags(files, given, flags.gin_search_paths)


# ----------------------------------------------------- decoding ------------------------------------------------------


def add_decoding_flags(parser: argparse.ArgumentParser) -> None:
    """How to decode, in words of the command line; `decoding_bindings` says it in gin's."""
    group = parser.add_argument_group("decoding lines of text (default: what the run has bound, else beam search)")
    group.add_argument("--beams", type=int, metavar="N", help="beam search with N beams; all are kept in --output_file")
    group.add_argument("--greedy", action="store_true", help="the likeliest token at each step")
    group.add_argument("--temperature", type=float, metavar="T", help="sample; 1 is the model's own distribution")
    group.add_argument("--top_k", type=int, metavar="K", help="sample among the K likeliest tokens")
    group.add_argument("--top_p", type=float, metavar="P", help="sample among the likeliest tokens of probability P")
    group.add_argument("--samples", type=int, metavar="N", help="so many samples of each line")
    group.add_argument("--max_decode_length", type=int, metavar="N", help="tokens of an answer (114)")


def decoding_bindings(flags: argparse.Namespace) -> list[str]:
    """Of the flags that `add_decoding_flags` added.

    Raises:
      ValueError: for ways to decode that exclude each other, or a value out of range.
    """
    sampling = {name: getattr(flags, name) for name in ("temperature", "top_k", "top_p", "samples")}
    sampling = {name: value for name, value in sampling.items() if value is not None}
    ways = [f"--beams {flags.beams}"] * (flags.beams is not None) + ["--greedy"] * flags.greedy
    ways += ["--" + "/--".join(sampling)] * bool(sampling)
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(ways)} are different ways to decode; give one of them.")
    if "top_k" in sampling and "top_p" in sampling:
        raise ValueError("--top_k and --top_p cannot both cut the distribution; give one of them.")
    limits = {"beams": flags.beams, "max_decode_length": flags.max_decode_length, **sampling}
    for name, value in limits.items():
        if value is not None and (value <= 0 or (name == "top_p" and value > 1)):
            raise ValueError(f"--{name} is {value}; it is above 0{' and at most 1' if name == 'top_p' else ''}.")
    bindings = []
    if flags.beams is not None:
        bindings += ["models.EncoderDecoderModel.decode_fn = @decoding.beam_search"]
        bindings += [f"answers.Answerer.num_decodes = {flags.beams}"]
    elif ways:
        bindings += ["models.EncoderDecoderModel.decode_fn = @decoding.temperature_sample"]
        bindings += [f"answers.Answerer.num_decodes = {sampling.get('samples', 1)}"]
    if sampling:
        bindings += [f"decoding.temperature_sample.temperature = {sampling.get('temperature', 1.0)}"]
        bindings += [f"decoding.temperature_sample.topk = {sampling.get('top_k', 0)}"]
        bindings += [f"decoding.temperature_sample.topp = {sampling.get('top_p', 0.0)}"]
    if flags.max_decode_length is not None:
        bindings += [f"answers.Answerer.max_decode_length = {flags.max_decode_length}"]
    return bindings
