"""The gin lines of `limba run` for what follows evaluations: the best checkpoint, early stopping, drops of the rate."""

from limba.addons.run.keys.request import Request
from limba.gin_config.recipe import Binding, Block, Reference, Statement, given


def best_name(request: Request) -> str:
    """`metric_for_best_model` as the results name it, without `eval_`."""
    name = request.metric_for_best_model.removeprefix("eval_")
    of_entities = request.return_entity_level_metrics and name in ("precision", "recall", "f1", "accuracy")
    return f"overall_{name}" if of_entities else name


def measured(request: Request) -> tuple[str, str]:
    """`metric_for_best_model` in metrics.jsonl: the folder of its evaluation, and its name there.

    The loss is that of given targets; other metrics of a fine-tuning are those of answers.
    """
    name = best_name(request)
    if name == "gen_len":
        return "inference_eval", "tokens_per_prediction"
    if name in ("loss", "perplexity"):  # The second rises and falls with the first.
        return "training_eval", request.row_answers.loss
    name = request.row_answers.names.get(name, name)
    return ("inference_eval", f"eval/{name}") if request.is_finetuning else ("training_eval", name)


def best_checkpoints(request: Request, task: str) -> list[Statement]:
    """Which checkpoints are kept; nothing where the newest are."""
    if not request.load_best_model_at_end and request.save_strategy != "best":
        return []
    folder, name = measured(request)
    values = given(
        metric_name_to_monitor=f"{folder}/{task}/{name}",
        metric_mode=request.best_mode,
        # Before the first evaluation there is no best.
        keep_checkpoints_without_metrics=False if request.save_strategy == "best" else None,
    )
    best = "checkpoints.SaveBestCheckpointer"
    return [Binding("checkpoints.SaveCheckpointConfig.checkpointer_cls", Reference(f"@{best}")), Block(best, values)]


def actions(request: Request, task: str) -> list[Statement]:
    """What follows an evaluation."""
    folder, name = measured(request)
    name = name.removeprefix("eval/")
    of_both = {"metric": (task, name), "mode": request.best_mode}
    blocks = []
    if request.early_stopping_patience is not None:
        limits = {"patience": request.early_stopping_patience, "atol": request.early_stopping_threshold or None}
        blocks.append(Block("actions.StopOnPlateauAction", given(**of_both, **limits)))
    if request.use_lr_drop:
        is_relative = request.lr_drop_threshold_mode == "rel"
        threshold = {"rtol" if is_relative else "atol": request.lr_drop_threshold}
        least = request.lr_drop_min_lr / request.learning_rate
        # PyTorch's ReduceLROnPlateau lowers the rate at the evaluation after `patience` bad ones.
        limits = {"patience": request.lr_drop_patience + 1, "min_scale": least or 1e-8}
        values = given(**of_both, factor=request.lr_drop_factor, **threshold, **limits)
        blocks.append(Block("actions.DropOnPlateauAction", values))
    if not blocks:
        return []
    mode = "TRAIN_EVAL" if folder == "training_eval" else "INFER_EVAL"
    return [Binding("train_script.train.actions", {mode: [Reference(f"@{x.name}()") for x in blocks]}), *blocks]
