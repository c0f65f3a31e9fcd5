"""The gin lines of `limba run` for what follows evaluations: the best checkpoint, early stopping, drops of the rate."""

from limba.addons.run.keys.run_arguments import RunArguments
from limba.gin_config.recipe import Binding, Block, Reference, Statement, given


def best_name(arguments: RunArguments) -> str:
    """`metric_for_best_model` as the results name it, without `eval_`."""
    name = arguments.metric_for_best_model.removeprefix("eval_")
    of_entities = arguments.return_entity_level_metrics and name in ("precision", "recall", "f1", "accuracy")
    return f"overall_{name}" if of_entities else name


def measured(arguments: RunArguments) -> tuple[str, str]:
    """`metric_for_best_model` in metrics.jsonl: the folder of its evaluation, and its name there.

    The loss is that of given targets; other metrics of a fine-tuning are those of answers.
    """
    name = best_name(arguments)
    if name == "gen_len":
        return "inference_eval", "tokens_per_prediction"
    if name in ("loss", "perplexity"):  # The second rises and falls with the first.
        return "training_eval", arguments.row_answers.loss
    name = arguments.row_answers.names.get(name, name)
    return ("inference_eval", f"eval/{name}") if arguments.is_finetuning else ("training_eval", name)


def best_checkpoints(arguments: RunArguments, task: str) -> list[Statement]:
    """Which checkpoints are kept; nothing where the newest are."""
    if not arguments.load_best_model_at_end and arguments.save_strategy != "best":
        return []
    folder, name = measured(arguments)
    values = given(
        metric_name_to_monitor=f"{folder}/{task}/{name}",
        metric_mode=arguments.best_mode,
        # Before the first evaluation there is no best.
        keep_checkpoints_without_metrics=False if arguments.save_strategy == "best" else None,
    )
    best = "checkpoints.SaveBestCheckpointer"
    return [Binding("checkpoints.SaveCheckpointConfig.checkpointer_cls", Reference(f"@{best}")), Block(best, values)]


def actions(arguments: RunArguments, task: str) -> list[Statement]:
    """What follows an evaluation."""
    folder, name = measured(arguments)
    name = name.removeprefix("eval/")
    of_both = {"metric": (task, name), "mode": arguments.best_mode}
    blocks = []
    if arguments.early_stopping_patience is not None:
        limits = {"patience": arguments.early_stopping_patience, "atol": arguments.early_stopping_threshold or None}
        blocks.append(Block("actions.StopOnPlateauAction", given(**of_both, **limits)))
    if arguments.use_lr_drop:
        is_relative = arguments.lr_drop_threshold_mode == "rel"
        threshold = {"rtol" if is_relative else "atol": arguments.lr_drop_threshold}
        least = arguments.lr_drop_min_lr / arguments.learning_rate
        # PyTorch's ReduceLROnPlateau lowers the rate at the evaluation after `patience` bad ones.
        limits = {"patience": arguments.lr_drop_patience + 1, "min_scale": least or 1e-8}
        values = given(**of_both, factor=arguments.lr_drop_factor, **threshold, **limits)
        blocks.append(Block("actions.DropOnPlateauAction", values))
    if not blocks:
        return []
    mode = "TRAIN_EVAL" if folder == "training_eval" else "INFER_EVAL"
    return [Binding("train_script.train.actions", {mode: [Reference(f"@{x.name}()") for x in blocks]}), *blocks]
