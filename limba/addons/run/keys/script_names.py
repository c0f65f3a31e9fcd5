"""Which script of Hugging Face a command is written for: its first word, the key `script`, or its other keys say it."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

SUMMARIES, TRANSLATIONS, QUESTIONS, MASKS, WORDS = (
    *("run_summarization", "run_translation", "run_seq2seq_qa", "run_mlm", "run_ner"),
)
CLASSES = "run_classification"
OF_LABELS = ("run_glue", CLASSES)
# Other names of scripts that do the same.
_SAME = {
    "run_qa": QUESTIONS,
    "run_text_classification": "run_glue",
    "run_token_classification": WORDS,
    **dict.fromkeys(("run_t5_pretraining", "run_bert_pretraining", "run_mlm_wwm", "pre_train_t5"), MASKS),
}
# Whatever stands behind it: run_t5_mlm_to_pretrain_accelerate.
_T5_MASKS = "run_t5_mlm"
# Scripts of which the model and the data say what is learned, as without a name.
_OF_ANY_DATA = ("fine_tune_t5",)
_DECODES = (
    "trains a network that only decodes, such as GPT-2, and `limba run` trains T5s and encoders. Leave the script's "
    "name out: a T5 learns to continue texts with task prefix_lm, and masked spans without it; an encoder learns "
    "masked words"
)
# Scripts whose task is not here: what they do, and the remedy.
_REFUSED = {
    **dict.fromkeys(("run_clm", "run_plm", "run_fim"), _DECODES),
    "run_xnli": (
        "takes the pairs of XNLI from the hub by the key language, which is not here. Write run_glue with the files of "
        "a language as train_file and validation_file: their columns are premise, hypothesis and label"
    ),
    "run_swag": (
        "chooses among several endings of a text, and `limba run` has no such head. A T5 can learn to write the right "
        "ending: leave the script's name out, and give text_column_name, a template of columns, and label_column_name"
    ),
}
_SCRIPTS = (SUMMARIES, TRANSLATIONS, QUESTIONS, MASKS, WORDS, *OF_LABELS)
NAMES = (*_SCRIPTS, _T5_MASKS, *_SAME, *_OF_ANY_DATA, *_REFUSED)
# Keys that one kind of script alone has.
_OF_MASKS = ("mlm_probability", "mlm_prob", "mean_noise_span_length", "line_by_line", "whole_word_mask", "iters")
_OF_SUMMARIES = ("summary_column", "source_prefix", "predict_with_generate", "max_source_length")
# What the loops of the scripts without a Trainer do: no clipping, and an evaluation after each epoch.
_WITHOUT_TRAINER = {"max_grad_norm": 0.0, "eval_strategy": "epoch"}
# The optimizer of the Flax scripts' `adafactor`.
OPTAX_ADAFACTOR = "adafactor_optax"
# Keys that say what is learned, whichever script has them.
_DECIDE = (
    *("benchmark", "label_column_name", "source_lang", "target_lang", "question_column", "context_column"),
    *("answer_column", "task", "task_name", "use_nsp"),
)


def is_script(word: str) -> bool:
    """Whether a word of a command line is the name of a script, as `run_glue.py` or `run_glue`."""
    return PurePath(word).suffix == ".py" or is_known(word)


def is_known(word: str) -> bool:
    """Whether the name says what a script does, also one whose task is not here."""
    return _plain(word) is not None or _stem(word) in (*_REFUSED, *_OF_ANY_DATA)


def _stem(word: str) -> str:
    stem = PurePath(word).name.removesuffix(".py")
    for ending in ("_no_trainer", "_flax"):
        stem = stem.removesuffix(ending)
    return stem.replace("run_flax_", "run_")


def _is_flax(word: str) -> bool:
    name = PurePath(word).name.removesuffix(".py")
    return name.endswith("_flax") or name.startswith("run_flax_")


def _plain(word: str) -> str | None:
    """The script that does what the one of this name does; None for an unknown one."""
    stem = MASKS if _stem(word).startswith(_T5_MASKS) else _SAME.get(_stem(word), _stem(word))
    return stem if stem in _SCRIPTS else None


def check(name: Any) -> None:
    """Raises ValueError for a script whose task is not here; its keys need not be known."""
    if isinstance(name, str) and _stem(name) in _REFUSED:
        raise ValueError(f"{name} {_REFUSED[_stem(name)]}.")


def complete(values: Mapping[str, Any], used: dict[str, Any]) -> list[str]:
    """Adds `script`, and what it means without other keys, to the arguments `used`; returns notes.

    Raises:
      ValueError: for a translation without its languages, or an unknown script where no key says what is learned.
    """
    notes = _complete_flax(values, used)
    given = used.pop("script", None)
    if given is not None and _stem(given) in _OF_ANY_DATA:
        given = None
    if given is not None:
        used["script"] = _plain(given)
        if used["script"] is None:
            notes += [f"Without effect: {given} (of a script that is not known here the keys say what is learned)."]
    decided = any(used.get(name) for name in _DECIDE)
    if used.get("script") is None and not decided:
        # A default that is written out, such as mlm_probability 0.15, names its script as well.
        asks = {name for name, value in values.items() if value not in (None, False, "", "false", "False")}
        if asks & {*_OF_MASKS}:
            used["script"] = MASKS
        elif asks & {*_OF_SUMMARIES}:
            used["script"] = SUMMARIES
        elif given is not None and "answers" not in used:
            raise ValueError(
                f"{given} is no script that `limba run` knows, and no key says what is learned. It knows "
                f"{', '.join(_SCRIPTS)}: write the one that yours does the same as, or no name; then the model and the "
                "data say what is learned."
            )
    if given is not None and _stem(given) == "run_mlm_wwm" and "whole_word_mask" not in used:
        used["whole_word_mask"] = True
        notes.append(f"{given} masks whole words: whole_word_mask is true.")
    notes += _complete_without_trainer(given, used)
    script = used.get("script")
    has_languages = used.get("source_lang") and used.get("target_lang")
    if script == TRANSLATIONS and not used.get("benchmark") and not has_languages:
        raise ValueError("run_translation needs the languages: write source_lang and target_lang, such as en and ro.")
    if script == QUESTIONS and not decided:
        used["question_column"] = "question"
    if script == WORDS:
        used.setdefault("task_name", "ner")
    return notes


def _complete_without_trainer(given: str | None, used: dict[str, Any]) -> list[str]:
    """What a script whose name ends in _no_trainer does where no key says otherwise; a note."""
    if given is None or not PurePath(given).name.removesuffix(".py").endswith("_no_trainer"):
        return []
    added = {name: value for name, value in _WITHOUT_TRAINER.items() if used.get(name) is None}
    used |= added
    return [f"As in {given}, {', '.join(f'{key} is {x}' for key, x in added.items())}."] if added else []


def _complete_flax(values: Mapping[str, Any], used: dict[str, Any]) -> list[str]:
    """What a Flax script does: epochs without their last, partial batch, no clipping, and for `adafactor`
    `optax.adafactor(learning_rate)` alone; notes.

    Of run_t5_mlm_flax there is a key that no other script has.
    """
    script = used.get("script")
    is_flax = "mean_noise_span_length" in values if script is None else _is_flax(script)
    if script is not None and is_flax:
        used.setdefault("dataloader_drop_last", True)
    own = {"scale_parameter", "relative_step", "warmup_init", "optim", "iters"} & {*values}
    if not is_flax or own or (script is None and not used.get("adafactor")):
        return []
    if not used.get("adafactor"):
        clips = {"max_grad_norm", "clip_grad_value"} & {*used}
        used.setdefault("max_grad_norm", 0.0)
        return [] if clips else ["As in the Flax scripts, max_grad_norm is 0.0: no clipping of gradients."]
    del used["adafactor"]
    removed = [name for name in ("weight_decay", "max_grad_norm") if used.get(name)]
    used |= {"optim": OPTAX_ADAFACTOR, "weight_decay": 0.0, "max_grad_norm": 0.0}
    notes = ["adafactor is that of the Flax scripts: steps relative to each parameter, no clipping of gradients."]
    return notes + [f"Without effect: {name} (the Flax scripts' Adafactor has none)." for name in removed]
