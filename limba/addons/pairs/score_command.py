"""`limba score`: how likely texts are to a model, a line a text, to rank or filter them.

    limba score runs/mine --input "The dogs bark."
    limba score runs/mine --input_file texts.txt --output_file scores.jsonl
    limba score runs/mine --input_file questions.csv --context_column question --text_column answer

A T5 or an encoder scores each word with all others in sight, a decoder from left to right (docs/scores.md). With
`--context_column` the text is scored behind its context alone.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

import jax

from limba import command_line
from limba.addons.pairs import differing_words
from limba.addons.pairs.text_scorer import TextScore, TextScorer
from limba.checkpoints import checkpointing, run_configuration
from limba.checkpoints.parameters import load_model_params
from limba.files import json_text, untrusted_files, written_files
from limba.files.local_paths import local_path
from limba.gin_config import gin_files
from limba.inference import infer_text, input_files
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner

_KINDS = ("whole", "pieces")


def score_texts(
    *,
    model: BaseTransformerModel,
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    texts: Sequence[str],
    contexts: Sequence[str] | None = None,
    kind: str = "whole",
    mode: str = "",
    batch_size: int = 32,
    output_file: str = "-",
    name_line: Callable[[int], str] = "line {}".format,
) -> list[TextScore]:
    """Writes JSON lines with `text`, `score` in nats, `tokens` (those that are scored) and `characters`.

    With contexts also `context`. The file is there when it is whole.

    Args:
      contexts: what stands before each text; None scores texts that stand alone, by their kind. A blank is put between
        the two where neither has one, except in scripts without blanks.
      output_file: "-" is standard output.
      name_line: the name of a text for messages, by its number from 1.

    Raises:
      ValueError: as `TextScorer`.
    """
    params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg)
    scorer = TextScorer(model, partitioner, params, mode, batch_size)
    scorer.name_text = lambda number: f"{name_line(number + 1)}, {untrusted_files.shown(texts[number])},"
    if contexts is None:
        scores = scorer.score(texts, kind)
    else:
        pairs = zip(contexts, texts, strict=True)
        scores = scorer.continuations(contexts, [differing_words.blank_between(*x) + x[1] for x in pairs])
    if jax.process_index() != 0:
        return scores
    with _opened(output_file) as file:
        for i, (text, found) in enumerate(zip(texts, scores, strict=True)):
            line = {"text": text} | ({} if contexts is None else {"context": contexts[i]})
            values = {"score": found.score, "tokens": found.num_tokens, "characters": len(text)}
            file.write(json_text.dumps(line | values, ensure_ascii=False) + "\n")
    if output_file != "-":
        print(f"{len(texts):,} scores in {output_file}")
    return scores


@contextlib.contextmanager
def _opened(output_file: str) -> Iterator[TextIO]:
    if output_file == "-":
        yield sys.stdout
        return
    path = local_path(output_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    with written_files.writing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        yield file


def main(argv: Sequence[str]) -> int:
    """Parses flags and the run's gin, and scores."""
    parser = command_line.argument_parser("score", __doc__ or "", takes_run=True)
    parser.add_argument("--input", action="append", default=[], metavar="TEXT", help="a text; repeatable")
    parser.add_argument("--input_file", metavar="FILE", help="one text a line, or a table; - reads standard input")
    parser.add_argument("--text_column", metavar="NAME", help="of a table, with the texts (text)")
    parser.add_argument("--context_column", metavar="NAME", help="of a table, with what stands before each text")
    parser.add_argument("--score", choices=_KINDS, help="what is scored (docs/scores.md): whole, unless given")
    parser.add_argument("--mode", metavar="TEXT", help="text in front of the inputs of a model with sentinels: '[NLU]'")
    parser.add_argument("--output_file", metavar="FILE", help="JSON lines; standard output, unless given")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --output_file")
    flags = command_line.parse_flags(parser, argv)
    if not flags.run_dir and not flags.gin_file:
        parser.error("give RUN, or gin files: a model, and gin/runs/score.gin")
    if flags.context_column is not None and flags.score is not None:
        parser.error("--context_column scores a text behind its context, and --score a text alone: leave one out.")
    if flags.context_column is not None and flags.input:
        parser.error("--context_column is for a table, and --input has no columns: leave one of them out.")
    output_file = flags.output_file or "-"
    if output_file != "-":
        infer_text.check_output(output_file, flags.overwrite)
    of_texts = flags.text_column or ("text" if input_files.is_table(flags.input_file or "-") else None)
    texts = flags.input + input_files.read_texts(flags.input_file, of_texts)
    if not texts:
        parser.error("nothing to score: give --input TEXT, or --input_file FILE with one text a line")
    column = flags.context_column
    contexts = None if column is None else input_files.read_texts(flags.input_file, column)
    bindings = {"CHECKPOINT_PATH": run_configuration.newest_checkpoint(flags.run_dir)} if flags.run_dir else {}
    run_configuration.parse(flags, "gin/runs/score.gin", bindings, needs_tasks=False)
    gin_files.require_bindings(CHECKPOINT_PATH="\"'runs/my_run'\"")
    configured = gin_files.configurable(score_texts, module="limba.addons.pairs.score_command")
    if command_line.goes_on(flags):
        configured(
            texts=texts,
            contexts=contexts,
            kind=flags.score or "whole",
            mode=flags.mode or "",
            output_file=output_file,
            name_line=input_files.line_names(flags.input, flags.input_file),
        )
    return 0


if __name__ == "__main__":
    from limba.addons.pairs import score_command as _this

    command_line.run_command(_this.main)
