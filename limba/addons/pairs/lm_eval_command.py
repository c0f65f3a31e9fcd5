"""`limba lm-eval`: tasks of lm-eval (EleutherAI's harness) with a run, T5s by their blanks and encoders by their masks.

    limba lm-eval runs/mine --tasks blimp --output_file results.json
    limba lm-eval runs/mine --tasks my_task --include_path my_tasks

It needs `pip install 'limba[lm_eval]'`. Tasks take their data from the Hugging Face hub, unless their files say
otherwise (docs/scores.md).
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from limba import command_line
from limba.addons.pairs import model_forms
from limba.addons.pairs.lm_eval_requests import BLANK, Requests
from limba.addons.pairs.text_scorer import TextScorer
from limba.checkpoints import checkpointing, run_configuration
from limba.checkpoints.parameters import load_model_params
from limba.files import json_text, written_files
from limba.files.local_paths import local_path
from limba.gin_config import gin_files
from limba.inference import decoding_flags, infer_text
from limba.inference.answering import Answerer
from limba.models import BaseTransformerModel
from limba.partitioning.meshes import PjitPartitioner


def open_requests(
    *,
    model: BaseTransformerModel,
    restore_checkpoint_cfg: checkpointing.RestoreCheckpointConfig,
    partitioner: PjitPartitioner,
    answerer_cls: Callable[..., Answerer],
    mode: str = "",
    batch_size: int = 32,
) -> Requests:
    """The answers of a checkpoint to requests of lm-eval.

    Args:
      answerer_cls: opens the checkpoint to generate: `answering.Answerer`; it is called when a task first does.
      mode: text in front of the inputs of an encoder-decoder.

    Raises:
      ValueError: as `TextScorer`.
    """
    params, _ = load_model_params(model, partitioner, restore_checkpoint_cfg)
    scorer = TextScorer(model, partitioner, params, mode, batch_size, finds_ranks=True)
    form = model_forms.form_of(model)

    def answer(lines: Sequence[str]) -> list[str]:
        greedy = decoding_flags.Decoding(greedy=True).arguments()
        answerer = answerer_cls(restore_checkpoint_cfg=restore_checkpoint_cfg, **greedy)
        return [found.prediction for found in answerer.answer([f"{mode}{line}" for line in lines])]

    is_encoder = form == "MaskedWords"
    blank = BLANK if form == "FilledBlanks" else ""
    return Requests(scorer, None if is_encoder else answer, blank, is_decoder=form == "WholeSentences")


def language_model(requests: Requests) -> Any:
    """The requests as an object of lm-eval's class `LM`.

    Raises:
      ValueError: if lm-eval is not installed.
    """
    try:
        from lm_eval.api.model import LM
    except ImportError as error:
        raise ValueError(f"lm-eval is not installed ({error}): pip install 'limba[lm_eval]'.") from error

    class LimbaLM(LM):
        """`Requests` under the names that lm-eval calls."""

        loglikelihood = staticmethod(requests.loglikelihood)
        loglikelihood_rolling = staticmethod(requests.loglikelihood_rolling)
        generate_until = staticmethod(requests.generate_until)

    return LimbaLM()


def evaluate(requests: Requests, flags: argparse.Namespace) -> dict[str, Any]:
    """Runs the tasks of the flags, prints lm-eval's table and returns its results."""
    model = language_model(requests)
    import lm_eval
    from lm_eval.tasks import TaskManager
    from lm_eval.utils import make_table

    manager = TaskManager(include_path=flags.include_path)
    found = lm_eval.simple_evaluate(
        model=model, tasks=flags.tasks, num_fewshot=flags.num_fewshot, limit=flags.limit, task_manager=manager
    )
    print(make_table(found))
    return {name: found[name] for name in ("results", "versions", "n-shot", "n-samples") if name in found}


def main(argv: Sequence[str]) -> int:
    """Parses flags and the run's gin, and evaluates."""
    parser = command_line.argument_parser("lm-eval", __doc__ or "", takes_run=True)
    parser.add_argument("--tasks", nargs="+", action="extend", metavar="TASK", help="names of lm-eval's tasks")
    parser.add_argument("--include_path", metavar="DIR", help="a folder with the YAML files of tasks of your own")
    parser.add_argument("--num_fewshot", type=int, metavar="N", help="examples before each question (the task's)")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N examples of each task")
    parser.add_argument("--mode", metavar="TEXT", help="text in front of the inputs of a model with sentinels: '[NLU]'")
    parser.add_argument("--output_file", metavar="FILE", help="JSON with the results")
    parser.add_argument("--overwrite", action="store_true", help="replace the file of --output_file")
    flags = command_line.parse_flags(parser, argv)
    if not flags.run_dir:
        parser.error("give RUN before --tasks: limba lm-eval RUN --tasks blimp")
    if not flags.tasks:
        parser.error("give --tasks TASK …; `lm-eval ls tasks` lists them")
    for name in ("num_fewshot", "limit"):
        value = getattr(flags, name)
        if value is not None and value < (name == "limit"):
            parser.error(f"--{name} is {value}; it is a number of examples.")
    if flags.include_path is not None and not Path(flags.include_path).is_dir():
        parser.error(f"--include_path {flags.include_path} is no folder; give the one with your tasks' YAML files.")
    if flags.output_file:
        infer_text.check_output(flags.output_file, flags.overwrite)
    bindings = {"CHECKPOINT_PATH": run_configuration.newest_checkpoint(flags.run_dir)}
    run_configuration.parse(flags, "gin/runs/lm_eval.gin", bindings, needs_tasks=False)
    configured = gin_files.configurable(open_requests, module="limba.addons.pairs.lm_eval_command")
    if command_line.goes_on(flags):
        results = evaluate(configured(mode=flags.mode or ""), flags)
        if flags.output_file:
            path = local_path(flags.output_file)
            path.parent.mkdir(parents=True, exist_ok=True)
            with written_files.writing(path) as temporary:
                temporary.write_text(json_text.dumps(results, indent=1, default=str), encoding="utf-8")
    return 0


if __name__ == "__main__":
    from limba.addons.pairs import lm_eval_command as _this

    command_line.run_command(_this.main)
