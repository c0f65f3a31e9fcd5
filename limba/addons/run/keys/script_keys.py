"""The keys of Hugging Face's scripts that pre-train and fine-tune a T5: what `limba run` takes, as JSON and as flags.

`Request` has the keys that are carried out, `other_keys` all others that are known. Any other key is an error.
"""

import dataclasses
import difflib
import importlib.util
import json
import logging
import math
import re
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.run.keys import period_keys, schedule_keys, script_names
from limba.addons.run.keys.other_keys import IN_ANY_CASE, ON, REFUSED, WITHOUT_EFFECT
from limba.addons.run.keys.request import BENCHMARK_MODEL, QUESTION_COLUMNS, Request
from limba.addons.run.keys.row_answers import WORD_TASKS
from limba.files import untrusted_json
from limba.files.untrusted_files import shown

logger = logging.getLogger(__name__)

FIELDS = {field.name: field for field in dataclasses.fields(Request)}
# Other names of keys.
ALIASES = {other: name for name, field in FIELDS.items() for other in field.metadata["also"]}
_TYPES = typing.get_type_hints(Request)

# Keys that are read in a way of their own.
OF_OWN_FORM = {
    "checkpointing_steps": "of the scripts without a Trainer: epoch, or how many steps there are between checkpoints",
    "optimize_mode": "min or max: greater_is_better",
    "optimizer_parameters": "an object of keys of the optimizer",
    "data_n_epochs": "num_train_epochs of the data",
}
# Keys whose values are lists or objects, and those that take several words of the command line.
_JSON = ("labels", "lr_scheduler_kwargs")
_LISTS = ("report_to", "metric_names", "ignore_config_keys", "include_for_metrics", "label_names")
# Texts that are also given without a value.
_ALSO_SWITCHES = ("resume_from_checkpoint", "hub_token")
_WANTED = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
# Values that ask for nothing.
_NOTHING: tuple[Any, ...] = (False, "", [], {})
_HIDDEN_TOKEN = re.compile(r"<\w*TOKEN>")
# Lengths of run_seq2seq_qa.py.
_OF_QUESTIONS = {"max_seq_length": 384, "max_target_length": 30}
# Of run_summarization.py and run_translation.py.
_OF_TEXTS = {"max_seq_length": 1024}
# Keys less alike than that are no misspellings of each other.
_NEAR = 0.8
# The same of the names of scripts.
_NEAR_SCRIPT = 0.85
# Keys without effect up to which each reason is a line.
_MANY = 10
# A call that makes the arguments, not the class.
_ARGUMENTS = re.compile(rb"TrainingArguments\(\s*(?:\w+\s*=[^=]|[\"'])")
# What the files begin with in which PyTorch and Python keep objects, and their endings.
_OF_OBJECTS = (b"PK\x03\x04", b"\x80")
_ENDINGS = (".bin", ".pt", ".pth", ".pkl")
_BYTES = 1 << 20
_AS_JSON = "open('args.json', 'w').write(args.to_json_string())"
# Two keys of one script that are one key here: as in the script, the first of each pair counts. `num_beams` and `token`
# are keys of the script, and the others of the Trainer; the scripts without a Trainer read `max_length` only where they
# have no max_source_length.
_SECOND_NAMES = (
    ("num_beams", "generation_num_beams"),
    ("max_source_length", "max_length"),
    ("hub_token", "token"),
    ("per_gpu_train_batch_size", "per_device_train_batch_size"),
    ("per_gpu_eval_batch_size", "per_device_eval_batch_size"),
)
# What a command of t5-experiments' trainer means where it says nothing: that trainer's defaults, not transformers'.
_OF_T5_EXPERIMENTS: Mapping[str, Any] = {
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "per_device_train_batch_size": 1,
    "max_seq_length": 128,
    "decay_all_parameters": True,
}
# What asks for evaluations, beside validation data.
_LOOK_AT_EVALUATIONS = (
    *("do_eval", "eval_steps", "eval_strategy", "load_best_model_at_end"),
    *("early_stopping_patience", "use_lr_drop"),
)
# Of run_bert_pretraining.py, which predicts next sentences unless it is told not to.
_OF_BERT_PRETRAINING = ("tokenizer", "mlm_prob", "short_seq_prob", "data_impl", "data_name")


def from_command_line(argv: Sequence[str], precision: str = "no") -> tuple[Request, list[str]]:
    """Reads `[SCRIPT] [CONFIG.json] [--key value | --key=value | --switch] …`; flags override the file.

    Args:
      precision: that of `accelerate launch`, where no key says bf16, as in TrainingArguments.

    Returns:
      The request, and a note for each key that is ignored.

    Raises:
      FileNotFoundError: if the file does not exist.
      ValueError: for an unknown key, with the nearest known one, or a value of the wrong type.
    """
    values: dict[str, Any] = {}
    rest = list(argv)
    if rest and not rest[0].startswith("--"):
        _check_first_word(rest[0], rest[1:])
    script = rest.pop(0) if rest and not rest[0].startswith("--") and script_names.is_script(rest[0]) else None
    if rest and not rest[0].startswith("--"):
        _check_dashes(rest[0], rest[1:])
        file = Path(rest.pop(0)).expanduser()
        if file.suffix.lower() in (".yaml", ".yml"):
            raise ValueError(f"{file} is YAML, and `limba run` reads JSON: write its keys so, or as flags.")
        values |= untrusted_json.read_object(file)
    name = ""
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            _check_dashes(flag, rest)
            of_files = " Several files are one pattern in quotes: --train_file 'parts/*.csv'."
            of_texts = f" If it belongs to --{name}, put the whole value in quotes." if name else ""
            more = of_files if name in ("train_file", "validation_file", "test_file") else of_texts
            raise ValueError(f"{flag!r} belongs to no flag; write CONFIG.json first, and then --key value.{more}")
        name, equals, value = flag.removeprefix("--").partition("=")
        name = _whole(name.replace("-", "_"))
        if equals:
            values[name] = value
        elif rest and not rest[0].startswith("--"):
            words = [rest.pop(0)]
            while name in _LISTS and rest and not rest[0].startswith("--"):
                words.append(rest.pop(0))
            values[name] = words[0] if len(words) == 1 else words
        else:
            of_switch = name.removeprefix("no_")  # transformers' parser has `--no_X` beside each switch that is on
            is_off = name not in _known() and of_switch in _known()
            if not is_off:
                _check_switch(name)
            values[of_switch if is_off else name] = not is_off
    return from_values(({} if script is None else {"script": script}) | values, precision)


def _check_first_word(word: str, rest: Sequence[str]) -> None:
    """Raises FileNotFoundError or ValueError for a first word that is neither a script nor a file of keys.

    A script of the user's own is none of these: the keys behind it, `rest`, say what is learned.
    """
    path = Path(word).expanduser()
    if path.suffix == ".py" and path.is_file() and not script_names.is_known(word):
        with path.open("rb") as file:
            has_arguments = _ARGUMENTS.search(file.read(_BYTES))
        if has_arguments or not rest:
            raise ValueError(
                f"{word} is a file of Python, and arguments in such a file are not read. Write them as JSON there, "
                f"{_AS_JSON}, and give args.json in its place."
            )
    if path.suffix in _ENDINGS and path.is_file() and _begins_as_objects(path):
        raise ValueError(
            f"{word} keeps objects of Python, which are not read. Write its arguments as JSON: "
            f"import torch; args = torch.load({word!r}, weights_only=False); {_AS_JSON}. Then give args.json in its "
            "place."
        )
    if not path.exists() and not script_names.is_known(word) and path.suffix in ("", ".py"):
        near = difflib.get_close_matches(path.stem, script_names.NAMES, n=1, cutoff=_NEAR_SCRIPT)
        if near:
            raise FileNotFoundError(f"There is no script and no file {word}. Did you mean {near[0]}{path.suffix}?")


def _begins_as_objects(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4).startswith(_OF_OBJECTS)


def _whole(name: str) -> str:
    """The key that a name is the beginning of, as for transformers' parser; the name itself if that is not one key."""
    if name in _known() or name.removeprefix("no_") in _known():
        return name
    found = [key for key in _known() if key.startswith(name)]
    return found[0] if len(found) == 1 else name


def _check_switch(name: str) -> None:
    """Raises ValueError for a flag that needs a value and has none."""
    key = ALIASES.get(name, name)
    if key in FIELDS and key not in _ALSO_SWITCHES and bool not in _kinds(key):
        raise ValueError(
            f"--{name} has no value behind it: write --{name} VALUE, {_WANTED.get(_kinds(key)[0], 'JSON')}."
        )


def _check_dashes(word: str, rest: Sequence[str]) -> None:
    """Raises ValueError for a key that is written without its dashes, with `rest` behind it."""
    name, equals, value = word.lstrip("-").partition("=")
    key = name.replace("-", "_")
    if key not in _known():
        return
    if not equals and rest and not rest[0].startswith("--"):
        value = rest[0]
    raise ValueError(f"{word!r} is a key without its dashes: write {f'--{key} {value}'.rstrip()}.")


def from_values(values: Mapping[str, Any], precision: str = "no") -> tuple[Request, list[str]]:
    """`from_command_line` of keys and values."""
    script_names.check(values.get("script"))
    for name in values:
        check_key(name)
    values, of_second_names = _without_second_names(_without_what_asks_for_nothing(_flat(values)))
    without_effect: dict[str, list[str]] = {}
    for name in values:
        if name in WITHOUT_EFFECT and name not in IN_ANY_CASE:
            without_effect.setdefault(WITHOUT_EFFECT[name], []).append(name)
    notes = [f"Without effect: {', '.join(names)} ({reason})." for reason, names in without_effect.items()]
    if len(all_names := [name for names in without_effect.values() for name in names]) > _MANY:  # of a dump of all keys
        rest = len(all_names) - _MANY
        notes = [
            f"Without effect: {', '.join(all_names[:_MANY])} and {rest} more keys; docs/run_keys.md has the reasons."
        ]
    notes += of_second_names
    used: dict[str, Any] = {}
    for name, value in values.items():
        key = ALIASES.get(name, name)
        if key not in FIELDS:
            continue
        if key == "warmup_steps" and (share := _share(value)) is not None:
            key, value = "warmup_ratio", share
        typed = _typed(key, value)
        if used.setdefault(key, typed) != typed:
            other = next(other for other in values if ALIASES.get(other, other) == key)
            raise ValueError(
                f"{other} is {shown(values[other])} and {name} is {shown(value)}: they are names of one key, "
                f"{key}; give one value."
            )
    if "task_name" in used:
        used["task_name"] = used["task_name"].lower()
        if used["task_name"] not in WORD_TASKS:
            used |= {"benchmark": "glue", "dataset_name": used["task_name"]}
    notes += _complete_t5_experiments(values, used)
    notes += period_keys.complete(used)
    notes += schedule_keys.complete(used)
    notes += script_names.complete(values, used)
    notes += _complete_questions(used)
    notes += _complete_summaries(values, used)
    notes += _complete_texts(used)
    notes += _without_files(used)
    if not {"do_train", "do_eval", "do_predict"} & used.keys():
        used |= {"do_train": True, "do_eval": True}
    if used.get("eval_strategy") not in (None, "no"):
        used["do_eval"] = True  # as in TrainingArguments.__post_init__
    has_network = used.get("model_name_or_path") or used.get("config_name")
    if has_network and used.pop("model_type", None):
        notes.append("Without effect: model_type (config.json has it).")
    if used.get("benchmark") and not has_network and not used.get("model_type"):
        used["model_name_or_path"] = BENCHMARK_MODEL
        notes.append(f"model_name_or_path is not given; {BENCHMARK_MODEL} is trained.")
    if (period := values.get("checkpointing_steps")) is not None:
        used |= {"save_strategy": "epoch"} if period == "epoch" else {"save_steps": _typed("save_steps", period)}
    if "optimize_mode" in values:
        used["greater_is_better"] = _is_max(values["optimize_mode"])
    given = used.get("bf16"), used.get("mixed_precision") == "bf16", used.get("dtype") == "bfloat16"
    if precision != "no" and not any(given):
        logger.info("ACCELERATE_MIXED_PRECISION of accelerate launch is %s: it counts as mixed_precision.", precision)
        used["mixed_precision"] = precision
    if "optim" in used:
        used["optim"] = used["optim"].lower()
    request = Request(**used)
    if request.do_train and not (request.learning_rate or request.relative_step):
        notes.append("learning_rate is 0: the training changes no parameter.")
    notes += period_keys.notes_of_best(request)
    if request.languages is not None and request.languages[0] == request.languages[1]:
        notes.append(f"source_lang and target_lang are both {request.source_lang}: the answer stands in the input.")
    if (label := request.label_column_name) in re.findall("[^{},]+", request.text_column_name or ""):
        notes.append(f"{label!r} is label_column_name, and in text_column_name: the answer stands in the input.")
    if not request.is_finetuning and request.script in (None, script_names.MASKS):
        lengths = ("max_target_length", "val_max_target_length", "generation_max_length")
        of_answers = [name for name in values if ALIASES.get(name, name) in lengths]
        notes += [f"Without effect: {name} (targets are as long as the masked spans need)." for name in of_answers]
    return request, notes


def _without_second_names(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The values without keys in whose place another one counts, and a note for each that has another value."""
    left, notes = dict(values), []
    for first, second in _SECOND_NAMES:
        if first in values and second in values:
            del left[second]
            if str(values[first]) != str(values[second]):
                notes.append(f"Without effect: {second} ({first} is given, and counts, as in the scripts).")
    return left, notes


def _complete_t5_experiments(values: Mapping[str, Any], used: dict[str, Any]) -> list[str]:
    """Adds the trainer's defaults to the arguments `used`, where the keys and `values` are from one of its commands.

    Returns:
      A note of what was added.
    """
    if "iters" not in values:
        return []
    added = {name: value for name, value in _OF_T5_EXPERIMENTS.items() if name not in used}
    notes = [f"{name} {str(value).lower()}" for name, value in added.items()]
    used |= added
    for key, name in (("dataset_name", "train_file"), ("validation_file", "validation_file")):
        folder = Path(str(used.get(key))).expanduser()
        if folder.is_dir() and any(folder.glob("*.jsonl")):
            used.pop(key)
            used[name] = f"{folder}/*.jsonl"
            notes.append(f"{name} {used[name]}")
    if used.get("validation_file"):
        used.setdefault("eval_steps", used.get("logging_steps"))
    is_evaluated = used.get("validation_file") or any(used.get(name) for name in _LOOK_AT_EVALUATIONS)
    if "do_train" not in used:
        used |= {"do_train": True, "do_eval": bool(is_evaluated)}
    if not is_evaluated:
        notes.append("no validation, for which valid_data_path is not given")
    if "use_nsp" not in values and any(name in values for name in _OF_BERT_PRETRAINING):
        notes.append("next sentences are not predicted without use_nsp")
    return [f"iters is a key of t5-experiments: what is not given is as in its trainer: {', '.join(notes)}."]


def _complete_summaries(values: Mapping[str, Any], used: dict[str, Any]) -> list[str]:
    """ROUGE, which run_summarization.py measures, for a `summary_column`; notes."""
    is_of_summaries = "summary_column" in values or used.get("script") == script_names.SUMMARIES
    if not is_of_summaries or used.get("metric_names") or used.get("benchmark"):
        return []
    best = used.get("metric_for_best_model") or ""
    if not has_rouge() and best.removeprefix("eval_").startswith("rouge"):
        raise ValueError(
            f"metric_for_best_model is {best!r}, and ROUGE needs a package that is not installed: "
            "pip install 'limba[metrics]', or write metric_for_best_model loss."
        )
    if not has_rouge():
        return ["ROUGE of the summaries is not measured without its package: pip install 'limba[metrics]'."]
    if used.get("label_column_name"):  # Else the data say whether there are summaries.
        used["metric_names"] = "rouge"
    return []


def _without_files(used: dict[str, Any]) -> list[str]:
    """Removes the files beside a data set, which the scripts look at first; returns a note of it."""
    files = [name for name in ("train_file", "validation_file", "test_file") if used.get(name)]
    if not (used.get("dataset_name") and files) or used.get("benchmark"):
        return []
    for name in files:
        del used[name]
    return [f"Without effect: {', '.join(files)} (dataset_name is given, and is read, as in the scripts)."]


def _complete_texts(used: dict[str, Any]) -> list[str]:
    """Adds the length of inputs of run_summarization.py and run_translation.py, where it is one of these; a note."""
    if used.get("script") not in (script_names.SUMMARIES, script_names.TRANSLATIONS) or used.get("benchmark"):
        return []
    added = {name: value for name, value in _OF_TEXTS.items() if used.get(name) is None}
    used |= added
    return [f"As in {used['script']}.py, {', '.join(f'{key} is {x}' for key, x in added.items())}."] if added else []


def has_rouge() -> bool:
    """Whether the package that measures ROUGE is installed."""
    return importlib.util.find_spec("rouge_score") is not None


def _complete_questions(used: dict[str, Any]) -> list[str]:
    """Adds the defaults of run_seq2seq_qa.py to the arguments `used`, where it is that script; returns a note of it."""
    if not any(used.get(name) for name in QUESTION_COLUMNS) or used.get("benchmark"):
        return []
    added = {name: value for name, value in _OF_QUESTIONS.items() if name not in used}
    used |= added
    listed = ", ".join(f"{name} {value}" for name, value in added.items())
    return [f"Columns of questions are keys of run_seq2seq_qa.py: as there, {listed}."] if added else []


def _without_what_asks_for_nothing(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that ask for something: without null, which counts as missing, and without the defaults of the scripts'
    keys that are not here.

    Raises:
      ValueError: for a key that is not here.
    """
    asked = {}
    for name, value in values.items():
        plain = _plain(value)
        is_of_other = name in WITHOUT_EFFECT or name in REFUSED
        if plain is None or (is_of_other and plain in _NOTHING and (plain is not False or name not in ON)):
            continue
        if name in ON and plain is True:
            continue
        if ALIASES.get(name, name) == "hub_token" and (plain in (True, False) or _HIDDEN_TOKEN.fullmatch(str(plain))):
            continue  # Which token is said elsewhere: transformers writes <HUB_TOKEN> into its own files.
        if ALIASES.get(name, name) == "dtype" and plain == "auto":
            continue
        if name in REFUSED:
            harmless, remedy = REFUSED[name]
            if plain in harmless:
                continue
            raise ValueError(f"{name} is {shown(value)}: {remedy}.")
        asked[name] = value
    return asked


def _plain(value: Any) -> Any:
    """A value of the command line as JSON has it, where it is JSON."""
    if value in ("None", "True", "False"):
        return {"None": None, "True": True, "False": False}[value]
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _share(value: Any) -> float | None:
    """A number between 0 and 1, which transformers 5 takes as a share of all steps."""
    plain = _plain(value)
    return plain if isinstance(plain, float) and 0 < plain < 1 else None


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """Keys and values without objects of keys.

    Raises:
      ValueError: for a key that is given twice.
    """
    inner = values.get("optimizer_parameters") or {}
    if not isinstance(inner, Mapping):
        raise ValueError(f'optimizer_parameters is {shown(inner)}; it is an object such as {{"lr": 1e-3}}.')
    for name in inner:
        check_key(name)
    flat = {name: value for name, value in values.items() if name != "optimizer_parameters"}
    for name, value in inner.items():
        if name in flat:
            raise ValueError(f"{name} is given twice: once in optimizer_parameters.")
        flat[name] = value
    if "data_n_epochs" in flat:
        epochs = flat.pop("data_n_epochs")
        if "max_steps" not in flat and "iters" not in flat:
            flat["num_train_epochs"] = epochs
    return flat


def _is_max(mode: Any) -> bool:
    if mode not in ("min", "max"):
        raise ValueError(f"optimize_mode is {shown(mode)}; use min or max.")
    return mode == "max"


def check_key(name: str) -> None:
    """Raises ValueError, with a key that is almost the same, if there is no such key."""
    known = _known()
    if name not in known:
        # Of two alike, the one of training.
        of_training = [key for key in known if not key.startswith(("eval", "per_device_eval"))]
        shortened = [key for key in FIELDS if key.endswith(f"_{name.lower()}")]  # train_batch_size
        near = [difflib.get_close_matches(name[:100].lower(), keys, n=1, cutoff=_NEAR) for keys in (of_training, known)]
        near = [shortened, *near] if len(shortened) == 1 else near
        nearest = next((f"; the nearest is {keys[0]!r}" for keys in near if keys), "")
        raise ValueError(
            f"`limba run` has no key {shown(name)}{nearest}. `limba run --help` lists all. "
            "What belongs to gin is given as --gin.NAME=VALUE."
        )


def is_known_script(name: str) -> bool:
    """Whether the name says what a script does: `script_names.is_known`."""
    return script_names.is_known(name)


def _known() -> tuple[str, ...]:
    return (*FIELDS, *ALIASES, *WITHOUT_EFFECT, *REFUSED, *OF_OWN_FORM)


# As transformers reads them.
_BOOLEANS = dict.fromkeys(("true", "t", "yes", "y", "1"), True) | dict.fromkeys(("false", "f", "no", "n", "0"), False)


def _typed(name: str, value: Any) -> Any:
    """A value of JSON or of the command line as the type of its key."""
    if name in _JSON:
        try:
            return untrusted_json.parse(value, name) if isinstance(value, str) else value
        except ValueError as error:
            raise ValueError(
                f'{name} is {shown(value)}; it must be JSON, such as \'["bad", "good"]\' ({error}).'
            ) from error
    choices = _kinds(name)
    if value in (None, "None", "null") and type(None) in typing.get_args(_TYPES[name]):
        return None
    if choices[0] is bool:
        if isinstance(value, bool) or str(value).lower() in _BOOLEANS:
            return value if isinstance(value, bool) else _BOOLEANS[str(value).lower()]
    elif choices[0] in (int, float) and not isinstance(value, bool):
        try:
            number = float(value)
            if math.isnan(number):
                raise ValueError
            if choices[0] is float and (name not in period_keys.STEPS or not number.is_integer()):
                return number
            if number == int(number):
                return int(number)
        except (TypeError, ValueError, OverflowError):
            pass
    elif choices[0] is str:
        if isinstance(value, str):
            return value
        if name == "resume_from_checkpoint" and isinstance(value, bool):
            return str(value).lower()
        if len(choices) > 1 and isinstance(value, list) and all(isinstance(word, str) for word in value):
            return tuple(value)
    raise ValueError(f"{name} is {shown(value)}; it must be {_WANTED[choices[0]]}.")


def _kinds(name: str) -> list[Any]:
    """The types of a key's values but None, the first of which is the usual one."""
    kind = _TYPES[name]
    return [k for k in (kind.__args__ if isinstance(kind, types.UnionType) else (kind,)) if k is not type(None)]


def help_text() -> str:
    """A line for every key."""
    lines = []
    for name, field in FIELDS.items():
        default = "" if field.default in (None, "", False) else f" ({field.default})"
        lines.append(f"  --{name:30} {field.metadata['help']}{default}")
    lines += ["", "other names of the same: " + ", ".join(f"--{name} ({key})" for name, key in ALIASES.items())]
    warned_of = [name for name in WITHOUT_EFFECT if name not in IN_ANY_CASE]
    lines += ["", *(f"  --{name:30} {what}" for name, what in OF_OWN_FORM.items())]
    lines += ["", "without effect, with a warning: " + ", ".join(f"--{name}" for name in warned_of)]
    lines += ["", "done in any case: " + ", ".join(f"--{name}" for name in IN_ANY_CASE)]
    lines += ["", "refused but for their defaults, with the remedy: " + ", ".join(f"--{name}" for name in REFUSED)]
    return "\n".join(lines)
