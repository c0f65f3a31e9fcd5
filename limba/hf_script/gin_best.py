"""The gin lines of `limba run` for what follows evaluations: the best checkpoint, early stopping, drops of the rate."""

from collections.abc import Collection

from limba.hf_keys.run_arguments import RunArguments
from limba.hf_script.gin_optimizer import bindings

# Ends of names of metrics that are shares: transformers' scripts write them from 0 to 1, Limba from 0 to 100.
_SHARES = ("accuracy", "precision", "recall", "f1", "exact_match", "corrcoef")
# Benchmarks and metrics with an exact match `em`.
_OF_QUESTIONS = {"squad", "span_squad", "trivia_qa", "super_glue_record"}
# SQuAD's F1, and that of SQuAD 2, which comes with `exact`.
_F1 = ("f1", "HasAns_f1", "NoAns_f1")
# Names of the scripts for metrics that have T5's here.
OF_SCRIPTS = {"em": "exact_match", "tokens_per_prediction": "gen_len"}


def is_share(name: str, others: Collection[str]) -> bool:
    """Whether a metric of answers is a share; `others` are the metrics beside it.

    SQuAD's F1, which comes with an exact match, is in percent there too, as ROUGE and BLEU are.
    """
    return name.endswith(_SHARES) and not (name in _F1 and {"em", "exact"} & {*others})


def _is_of_questions(arguments: RunArguments) -> bool:
    """Whether the metrics are SQuAD's or its like, with an exact match `em`, or `exact` of SQuAD 2."""
    if arguments.metrics is None and arguments.questions is not None:
        return True
    return bool({*_OF_QUESTIONS, "squad_v2"} & {arguments.entry, *(arguments.metrics or ())})


def measured(arguments: RunArguments) -> tuple[str, str]:
    """`metric_for_best_model` in metrics.jsonl: the folder of its evaluation, and Limba's name of it there.

    The loss is that of given targets; other metrics of a fine-tuning are those of answers.
    """
    name = arguments.metric_for_best_model.removeprefix("eval_")
    if name == "gen_len":
        return "inference_eval", "tokens_per_prediction"
    if name in ("loss", "perplexity"):  # The second rises and falls with the first.
        return "training_eval", arguments.row_answers.loss
    if arguments.return_entity_level_metrics and name in ("precision", "recall", "f1", "accuracy"):
        name = f"overall_{name}"
    name = arguments.row_answers.names.get(name, name)
    if name == "exact_match" and _is_of_questions(arguments):
        name = "em"
    return ("inference_eval", f"eval/{name}") if arguments.is_finetuning else ("training_eval", name)


def best_checkpoints(arguments: RunArguments, task: str) -> list[str]:
    """Which checkpoints are kept; nothing where the newest are."""
    if not arguments.load_best_model_at_end and arguments.save_strategy != "best":
        return []
    folder, name = measured(arguments)
    return [
        "checkpoints.SaveCheckpointConfig.checkpointer_cls = @checkpoints.SaveBestCheckpointer",
        "checkpoints.SaveBestCheckpointer:",
        *bindings(metric_name_to_monitor=f"{folder}/{task}/{name}", metric_mode=arguments.best_mode),
        # Before the first evaluation there is no best.
        *bindings(keep_checkpoints_without_metrics=False if arguments.save_strategy == "best" else None),
    ]


def actions(arguments: RunArguments, task: str) -> list[str]:
    """What follows an evaluation."""
    folder, name = measured(arguments)
    of_answers, name = name.startswith("eval/"), name.removeprefix("eval/")
    of_both = {"metric": (task, name), "mode": arguments.best_mode}
    # Thresholds are in the numbers of transformers' scripts.
    of_questions = _is_of_questions(arguments)
    scale = 100 if of_answers and is_share(name, ["em"] if of_questions else []) else 1
    classes, lines = [], []
    if arguments.early_stopping_patience is not None:
        classes.append("@actions.StopOnPlateauAction()")
        limits = {
            "patience": arguments.early_stopping_patience,
            "atol": scale * arguments.early_stopping_threshold or None,
        }
        lines += ["actions.StopOnPlateauAction:", *bindings(**of_both, **limits)]
    if arguments.use_lr_drop:
        classes.append("@actions.DropOnPlateauAction()")
        is_relative = arguments.lr_drop_threshold_mode == "rel"
        threshold = {"rtol" if is_relative else "atol": (1 if is_relative else scale) * arguments.lr_drop_threshold}
        least = arguments.lr_drop_min_lr / arguments.learning_rate
        lines += [
            "actions.DropOnPlateauAction:",
            *bindings(**of_both, factor=arguments.lr_drop_factor, **threshold),
            # PyTorch's ReduceLROnPlateau lowers the rate at the evaluation after `patience` bad ones.
            *bindings(patience=arguments.lr_drop_patience + 1, min_scale=least or 1e-8),
        ]
    if not classes:
        return []
    mode = "TRAIN_EVAL" if folder == "training_eval" else "INFER_EVAL"
    return [f"train_script.train.actions = {{{mode!r}: [{', '.join(classes)}]}}", *lines]
