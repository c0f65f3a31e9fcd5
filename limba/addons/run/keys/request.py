"""What a command of `limba run` asks for: the table of its keys, named as in Hugging Face's scripts."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from limba.addons.run.keys import period_keys, schedule_keys, script_names
from limba.addons.run.keys.row_answers import ANSWERS, TEXT, WORD_LABELS, WORD_TASKS, RowAnswers
from limba.files.local_paths import local_path

_NO_FP16 = (
    "{}: float16 has a small range. It needs a scaled loss, which is not here, and a T5 overflows even with one. "
    "Write {} in its place: bf16 has float32's range."
)
# The column of documents.
DOCUMENTS = "text"
# Of run_seq2seq_qa.py.
QUESTION_COLUMNS = ("question_column", "context_column", "answer_column")
METRICS_OF_QUESTIONS = ("squad", "squad_v2", "trivia_qa")
# What is learned from documents.
TASKS = ("span_corruption", "prefix_lm", "masked_lm")
# The model of a fine-tuning on a benchmark that names none.
BENCHMARK_MODEL = "google/t5-v1_1-small"


def _key(
    help_: str,
    default: Any = None,
    *,
    also: Sequence[str] = (),
    least: float | None = None,
    below: float | None = None,
    one_of: Sequence[str] = (),
) -> Any:
    """A key: its other names, the limits of a number, and the values of a choice."""
    metadata = {"help": help_, "also": also, "least": least, "below": below, "one_of": one_of}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class Request:
    """The keys and their values, without a look at any file; `limba run --help` prints the help of each field.

    Raises:
      ValueError: for a value that cannot be, keys that contradict each other, or a missing one.
    """

    script: str | None = _key("whose command it is, also as its first word: run_summarization, run_glue, run_ner …")
    # ----------------------------------------------------- model -----------------------------------------------------
    model_name_or_path: str | None = _key(
        "where to start: a folder of transformers', a name on the hub, a run, a .pth", also=("init_checkpoint",)
    )
    config_name: str | None = _key(
        "a config.json, its folder or a name: the network from scratch, or that of a .pth", also=("model_cfg",)
    )
    model_type: str | None = _key(
        "in place of config_name: the network that transformers' class has by default, from scratch"
    )
    config_overrides: str | None = _key("in place of the defaults of model_type: hidden_size=256,hidden_act=relu")
    initialize_from_scratch: bool = _key("of model_name_or_path only the network and the tokenizer: new weights", False)
    tokenizer_name: str | None = _key(
        "a tokenizer's folder, a spiece.model or a name, where it is not the model's", also=("tokenizer", "vocab")
    )
    ignore_config_keys: str | Sequence[str] | None = _key(
        "keys of the model's config.json that have no effect, as you know; else unknown ones are an error"
    )
    dtype: str = _key(
        "of the computation: float32 or bfloat16; parameters are float32",
        "float32",
        also=("torch_dtype",),
        one_of=("float32", "bfloat16"),
    )
    mixed_precision: str = _key("no or bf16", "no", one_of=("no", "bf16"))
    bf16: bool = _key("the same as mixed_precision: bf16", False)
    fp16: bool = _key("refused: it needs a scaled loss, and a T5 overflows in it; write bf16", False)
    gradient_checkpointing: bool = _key(
        "recompute activations to save memory", False, also=("activation_checkpointing",)
    )
    # ----------------------------------------------------- data ------------------------------------------------------
    dataset_name: str | None = _key(
        "a data set on the hub, or a folder with files train*, validation* …", also=("data_path",)
    )
    dataset_config_name: str | None = _key("its configuration", also=("dataset_config",))
    train_file: str | None = _key("a file or pattern: txt, csv, json, jsonl or parquet")
    validation_file: str | None = _key("the same, for evaluation", also=("valid_data_path",))
    text_column_name: str | None = _key(
        "the column with the text; also a template: '{question} {context}'; else text, or of documents the first",
        also=("text_column", "input_column", "text_column_names"),
    )
    validation_split_percentage: int = _key("of the training documents, where there is no validation split", 5)
    test_file: str | None = _key("the same, for do_predict")
    max_seq_length: int | None = _key(
        "tokens of the inputs: 512; of run_summarization and run_translation 1024; of an encoder with labels 128, "
        "with documents the tokenizer's model_max_length, at most 1024",
        least=1,
        also=("input_seq_len", "input_seq_length", "max_source_length", "max_length"),
    )
    max_train_samples: int | None = _key(
        "only the first rows; of run_mlm those behind the grouping of texts", least=1, also=("num_train_examples",)
    )
    max_eval_samples: int | None = _key("the same of the validation split", least=1, also=("num_validation_examples",))
    task: str | None = _key(
        "what is learned from documents: by a T5 span_corruption, the default, or prefix_lm; by an encoder masked_lm"
    )
    mlm_probability: float = _key("share of tokens that is masked", 0.15, also=("mlm_prob",))
    mean_noise_span_length: float = _key("tokens of a masked span, of a T5", 3.0, least=1)
    whole_word_mask: bool = _key("mask whole words, of an encoder", False)
    line_by_line: bool = _key("of an encoder: a row for each document, a line of txt, cut at max_seq_length", False)
    use_nsp: bool = _key("predict the next sentence too, of an encoder", False)
    # --------------------------------------------------- fine-tuning -------------------------------------------------
    benchmark: str | None = _key("glue or super_glue, with the task as dataset_name; or squad, cnn_dailymail …")
    task_name: str | None = _key("a task of GLUE; or ner, pos or chunk, of run_ner: the column <task_name>_tags")
    answers: str = _key(
        "text of a T5; of an encoder label, number or word_labels, which the data say where no key does",
        TEXT,
        one_of=tuple(ANSWERS),
    )
    do_regression: bool | None = _key("an encoder's answers are numbers; false: labels, also where they look so")
    return_entity_level_metrics: bool = _key("of labels of words: the scores of each kind of entity too", False)
    label_all_tokens: bool = _key("of labels of words: all pieces of a word have its label, not only the first", False)
    text_column_delimiter: str = _key("between the texts of several columns, text_column_names: a,b", " ")
    source_prefix: str = _key("text before each input", "")
    label_column_name: str | None = _key(
        "the column with the answer: fine-tuning in place of masked spans",
        also=("label_column", "summary_column", "target_column"),
    )
    source_lang: str | None = _key("with target_lang: rows have a column translation, texts by language")
    target_lang: str | None = _key("the language to translate to, by BLEU; source_prefix is the text before each input")
    question_column: str | None = _key("one of these three: answers to questions about a context (question)")
    context_column: str | None = _key("the column with the context (context)")
    answer_column: str | None = _key(
        "with the answers: SQuAD's record, a list or a text; the first is learned (answers)"
    )
    version_2_with_negative: bool = _key("questions may have no answer: the metrics of SQuAD 2", False)
    labels: Mapping[str, str] | Sequence[str] | None = _key(
        """all answers: '["bad", "good"]', or the text of each value: '{"0": "bad", "1": "good"}'"""
    )
    metric_names: str | Sequence[str] | None = _key(
        "of tasks.metrics.text_metrics: accuracy, rouge, bleu, mse …; several: bleu,rouge", also=("metric_name",)
    )
    max_target_length: int | None = _key(
        "tokens of the answers: 128, of a closed set of labels those of the longest",
        least=1,
        also=("target_seq_len", "target_seq_length", "max_answer_length"),
    )
    val_max_target_length: int | None = _key(
        "the same, in evaluations; max_target_length if it is not given", least=1, also=("val_max_answer_length",)
    )
    generation_max_length: int | None = _key(
        "tokens of a generated answer; val_max_target_length if it is not given", least=1
    )
    generation_num_beams: int | None = _key(
        "beams of generated answers; without it, or with 1, greedy", least=1, also=("num_beams",)
    )
    max_predict_samples: int | None = _key("only the first rows of the test split", least=1)
    # --------------------------------------------------- training ----------------------------------------------------
    output_dir: str = _key("where everything goes", "", also=("model_path",))
    overwrite_output_dir: bool = _key(
        "a run of other values in output_dir is moved into its folder before_1, and a new one begins", False
    )
    resume_from_checkpoint: str | None = _key(
        "a checkpoint of output_dir: later ones are moved into run/later_1; true is the newest, as without it"
    )
    do_train: bool = _key("train; without any do_… both this and do_eval", False)
    do_eval: bool = _key("evaluate every eval_steps and at the end; alone: the model as it is", False)
    do_predict: bool = _key("answer the test split, after the training if there is one", False)
    per_device_train_batch_size: int = _key(
        "rows a device and forward pass", 8, least=1, also=("batch_size", "per_gpu_train_batch_size")
    )
    per_device_eval_batch_size: int = _key("rows a device", 8, least=1, also=("per_gpu_eval_batch_size",))
    gradient_accumulation_steps: int = _key(
        "forward passes an update", 1, least=1, also=("training_accumulation_steps",)
    )
    learning_rate: float = _key("the highest of the schedule", 5e-5, least=0, also=("lr",))
    lr_scheduler_type: str = _key(
        ", ".join((*schedule_keys.SCHEDULES, schedule_keys.PLATEAU)), "linear", also=("lr_scheduler",)
    )
    lr_scheduler_kwargs: Mapping[str, Any] | None = _key(
        """numbers of a schedule: '{"num_cycles": 2}', power, lr_end, min_lr, min_lr_rate …"""
    )
    warmup_steps: int = _key("steps until learning_rate is reached", 0, least=0, also=("num_warmup_steps",))
    warmup_ratio: float = _key("the same, as a share of all steps", 0.0, least=0)
    optim: str = _key(
        "adamw_torch (all names of AdamW mean the same), adafactor, or adafactor_optax, that of Flax scripts",
        "adamw_torch",
        also=("optimizer",),
    )
    adafactor: bool = _key("the same as optim: adafactor", False)
    scale_parameter: bool = _key("Adafactor's steps are relative to each parameter", False)
    relative_step: bool = _key("Adafactor's own rate, in place of learning_rate and lr_scheduler_type", False)
    warmup_init: bool = _key("with relative_step: a warm-up from 1e-6", False)
    adam_beta1: float = _key("of AdamW", 0.9, least=0, below=1)
    adam_beta2: float = _key("of AdamW", 0.999, least=0, below=1)
    adam_epsilon: float = _key("of AdamW", 1e-8, least=0)
    weight_decay: float = _key("of AdamW; not of norms and position biases", 0.0, least=0)
    decay_all_parameters: bool = _key("weight_decay also of norms and position biases, as in t5-experiments", False)
    label_smoothing_factor: float = _key(
        "share of the target's probability that all tokens get alike", 0.0, least=0, below=1
    )
    max_grad_norm: float = _key(
        "gradients are clipped to this global norm; 0 leaves them", 1.0, least=0, also=("clip_grad_norm",)
    )
    clip_grad_value: float | None = _key(
        "each number of a gradient is clipped to this, in place of max_grad_norm", least=0
    )
    num_train_epochs: float = _key("passes over the training documents", 3.0)
    max_steps: int = _key(
        "updates, in place of epochs; -1 goes by num_train_epochs", -1, also=("iters", "max_train_steps")
    )
    dataloader_drop_last: bool = _key("the last, partial batch of an epoch counts no step, as in Flax scripts", False)
    num_training_steps: int | None = _key(
        "updates until the schedule has ended, where they are not all of them", least=1
    )
    logging_strategy: str = _key(
        "steps, epoch, or no: one line of training metrics, at the end", "steps", one_of=period_keys.PERIODS
    )
    logging_steps: float | None = _key(
        "steps between lines of training metrics, 500 if it is not given; below 1 a share of all steps, as below",
        also=("log_interval",),
    )
    save_strategy: str = _key(
        "steps, epoch, no: one checkpoint, at the end; or best: where metric_… improves",
        "steps",
        one_of=(*period_keys.PERIODS, "best"),
    )
    save_steps: float = _key("steps between checkpoints", 500, also=("save_interval",))
    eval_strategy: str | None = _key(
        "steps or epoch, which set do_eval, or no: one evaluation, at the end; of do_eval, steps",
        also=("evaluation_strategy",),
        one_of=period_keys.PERIODS,
    )
    eval_steps: float | None = _key(
        "steps between evaluations; else save_steps, with eval_strategy steps logging_steps", also=("valid_interval",)
    )
    eval_delay: float = _key("no evaluation before this step, or this epoch of eval_strategy epoch", 0.0)
    save_total_limit: int | None = _key("newest checkpoints that are kept; all if it is not given, or 0")
    load_best_model_at_end: bool = _key(
        "keep the best checkpoint by metric_for_best_model, and export it", False, also=("save_best",)
    )
    metric_for_best_model: str = _key(
        "loss, or a metric of the evaluations such as accuracy", "loss", also=("optimize_metric",)
    )
    greater_is_better: bool | None = _key("of that metric; if it is not given, of all but losses")
    early_stopping_patience: int | None = _key(
        "evaluations without a better metric_for_best_model that end training", least=1
    )
    early_stopping_threshold: float = _key("a smaller improvement is none", 0.0, least=0)
    use_lr_drop: bool = _key("lower the rate where metric_for_best_model does not improve", False)
    lr_drop_factor: float = _key("what it is multiplied by", 0.1)
    lr_drop_patience: int = _key("evaluations without an improvement before it drops at the next", 10, least=0)
    lr_drop_threshold: float = _key("a smaller change is none", 1e-4, least=0)
    lr_drop_threshold_mode: str = _key("rel, a share of the best, or abs", "rel", one_of=("rel", "abs"))
    lr_drop_min_lr: float = _key("the rate does not drop below", 0.0, least=0)
    seed: int = _key("of parameters, dropout, order and masks", 42, least=0, below=2**32)
    data_seed: int | None = _key("of order and masks, where it is another one", least=0, below=2**32)
    report_to: str | Sequence[str] = _key(
        "none, tensorboard (always written), wandb, trackio, mlflow, or all that are installed", "tensorboard"
    )
    run_name: str | None = _key("the run's name in the trackers of report_to")
    # ----------------------------------------------------- hub -------------------------------------------------------
    push_to_hub: bool = _key("upload the exported model at the end", False)
    push_to_hub_final_step: bool = _key("the same: only the final model is uploaded in any case", False)
    hub_model_id: str | None = _key(
        "NAME or ORG/NAME; the last part of output_dir if it is not given", also=("push_to_hub_model_id",)
    )
    hub_token: str | None = _key(
        "better in HF_TOKEN; it is written nowhere", also=("token", "use_auth_token", "push_to_hub_token")
    )
    hub_private_repo: bool = _key("whether a new repository is private", True)

    def __post_init__(self) -> None:
        if not self.output_dir:
            raise ValueError("output_dir is missing: name the folder for checkpoints and the exported model.")
        if not (self.do_train or self.do_eval or self.do_predict):
            raise ValueError("do_train, do_eval and do_predict are all false: there is nothing to do.")
        self._check_precision()
        self._check_task()
        if not self.names_network:
            raise ValueError(
                "model_name_or_path and config_name are missing; give the first to train a model further, the second "
                "(or model_type, with tokenizer_name) to train from scratch."
            )
        if self.config_overrides is not None and (self.model_name_or_path or self.config_name):
            raise ValueError(
                f"config_overrides is {self.config_overrides!r}, and changes the defaults of model_type: leave it "
                "out, or write the values into the config.json that config_name names."
            )
        self._check_each_key()
        self._check_optimizer()
        period_keys.check(self)
        for name in self.trackers:
            if name not in ("tensorboard", "wandb", "trackio", "mlflow", "none", "all"):
                raise ValueError(f"report_to is {name!r}; use none, tensorboard, wandb, trackio, mlflow or all.")

    def _check_task(self) -> None:
        files = [name for name in ("train_file", "validation_file", "test_file") if getattr(self, name) is not None]
        without_train = self.dataset_name is None and self.train_file is None and self.benchmark is None
        if without_train and (self.do_train or not files):
            raise ValueError(
                f"dataset_name is {self.dataset_name!r} and train_file {self.train_file!r}; give one of them."
            )
        if self.task not in (None, *TASKS):
            raise ValueError(f"task is {self.task!r}; use {' or '.join(TASKS)}.")
        if self.task is not None and self.is_finetuning:
            raise ValueError(f"task is {self.task!r}, and belongs to documents; rows with answers are learned here.")
        if (self.source_lang is None) != (self.target_lang is None):
            raise ValueError(
                f"source_lang is {self.source_lang!r} and target_lang {self.target_lang!r}; a translation needs both."
            )
        if self.languages is not None and (answers := self.label_column_name or self.labels):
            raise ValueError(
                f"source_lang is {self.source_lang!r}, and the answers are those of target_lang; leave {answers!r} out."
            )
        self._check_questions()
        for name in ("label_column_name", "labels", "source_prefix", "source_lang", *QUESTION_COLUMNS):
            if self.benchmark is not None and getattr(self, name):
                raise ValueError(
                    f"benchmark is {self.benchmark!r}, which has its texts and columns; leave {name} "
                    f"{getattr(self, name)!r} out."
                )

    def _check_questions(self) -> None:
        if self.questions is None:
            if self.version_2_with_negative:
                raise ValueError(
                    "version_2_with_negative is true, and belongs to questions: name their columns (question_column, "
                    "context_column, answer_column)."
                )
            return
        for name in ("label_column_name", "labels", "source_lang"):
            if self.benchmark is None and (value := getattr(self, name)):
                columns = ", ".join(self.questions)
                raise ValueError(f"{name} is {value!r}, and the columns of questions are {columns}; leave one out.")
        if wrong := [name for name in self.metrics or () if name not in METRICS_OF_QUESTIONS]:
            raise ValueError(
                f"metric_names is {wrong[0]!r}, and a question may have several right answers: use "
                f"{', '.join(METRICS_OF_QUESTIONS)}."
            )

    def check_documents(self) -> None:
        """Raises ValueError for keys of rows with answers, where documents are learned."""
        if not self.is_finetuning and (name := next(iter(self.keys_of_rows), None)):
            raise ValueError(
                f"{name} is {getattr(self, name)!r}, and belongs to fine-tuning: name the column with the answers "
                "(label_column_name), or a benchmark."
            )

    def _check_optimizer(self) -> None:
        schedule_keys.check(self.lr_scheduler_type, self.lr_scheduler_kwargs, self.learning_rate)
        if not (self.optim.startswith(("adamw", "paged_adamw")) or self.uses_adafactor):
            raise ValueError(f"optim is {self.optim!r}; AdamW (adamw_torch …) and adafactor are here.")
        for name in ("scale_parameter", "relative_step", "warmup_init"):
            if getattr(self, name) and not self.uses_adafactor:
                raise ValueError(f"{name} is true, and is Adafactor's; the optimizer is {self.optim}.")
        if self.clip_grad_value and self.uses_adafactor:
            raise ValueError(
                f"clip_grad_value is {self.clip_grad_value}, and Adafactor clips whole updates; leave it out, or write "
                "max_grad_norm."
            )
        if self.warmup_init and not self.relative_step:
            raise ValueError("warmup_init is true, and needs relative_step, whose warm-up it is.")

    def _check_precision(self) -> None:
        for name, refused, line in (
            ("fp16", True, '"bf16": true'),
            ("mixed_precision", "fp16", '"mixed_precision": "bf16"'),
            ("dtype", "float16", '"dtype": "bfloat16"'),
        ):
            if getattr(self, name) == refused:
                raise ValueError(_NO_FP16.format(f"{name}: {str(refused).lower()}", line))

    def _check_each_key(self) -> None:
        """Raises ValueError for a value beyond the limits that the table has for its key."""
        for field in dataclasses.fields(self):
            name, value, limits = field.name, getattr(self, field.name), field.metadata
            if value == "" and name not in ("source_prefix", "text_column_delimiter"):
                raise ValueError(f"{name} is empty; leave it out, or give a value.")
            if value is None:
                continue
            if (low := limits["least"]) is not None and not low <= value < math.inf:
                raise ValueError(f"{name} is {value}; it must be at least {low}.")
            if (high := limits["below"]) is not None and value >= high:
                raise ValueError(f"{name} is {value}; it must be below {high}.")
            if (known := limits["one_of"]) and value not in known:
                raise ValueError(f"{name} is {value!r}; use {', '.join(known[:-1])} or {known[-1]}.")
        if self.warmup_ratio > 1:
            raise ValueError(f"warmup_ratio is {self.warmup_ratio}; it is a share of all steps, from 0 to 1.")
        if not 0 < self.num_train_epochs < math.inf:
            raise ValueError(f"num_train_epochs is {self.num_train_epochs}; it must be above 0.")
        if self.max_steps != -1 and self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; it must be at least 1, or -1 to go by num_train_epochs.")
        if not 0 < self.mlm_probability < 1:
            raise ValueError(f"mlm_probability is {self.mlm_probability}; it must be between 0 and 1, such as 0.15.")
        if not 0 < self.validation_split_percentage < 100:
            raise ValueError(
                f"validation_split_percentage is {self.validation_split_percentage}; it must be between 1 and 99."
            )

    @property
    def names_network(self) -> bool:
        return (self.model_name_or_path, self.config_name, self.model_type) != (None, None, None)

    @property
    def ignored_config_keys(self) -> tuple[str, ...]:
        """`ignore_config_keys` as names; commas may stand between them."""
        given = self.ignore_config_keys or ()
        return tuple(",".join([given] if isinstance(given, str) else given).split(",")) if given else ()

    @property
    def trackers(self) -> tuple[str, ...]:
        """`report_to` as names."""
        return (self.report_to,) if isinstance(self.report_to, str) else tuple(self.report_to)

    @property
    def metrics(self) -> tuple[str, ...] | None:
        """`metric_names` as names, or the one that `metric_for_best_model` belongs to; None leaves the task's own."""
        if not self.metric_names:
            best = self.metric_for_best_model.removeprefix("eval_")
            of_best = [name for name in ("rouge", "bleu") if best.startswith(name)]
            if self.questions is not None:
                return ("squad_v2",) if self.version_2_with_negative else None
            return tuple(of_best) if of_best and self.benchmark is None and self.is_finetuning else None
        given = [self.metric_names] if isinstance(self.metric_names, str) else self.metric_names
        return tuple(name for name in ",".join(given).replace(" ", "").split(",") if name)

    @property
    def compute_dtype(self) -> str:
        return "bfloat16" if self.bf16 or self.mixed_precision == "bf16" else self.dtype

    @property
    def target_length(self) -> int:
        """Tokens of the answers in training."""
        return self.max_target_length or 128

    @property
    def eval_target_length(self) -> int:
        """Tokens of the answers in evaluations."""
        return self.val_max_target_length or self.target_length

    @property
    def answer_length(self) -> int:
        """Tokens of a generated answer."""
        return self.generation_max_length or self.eval_target_length

    @property
    def keys_of_rows(self) -> tuple[str, ...]:
        """The given keys that only rows with answers have a use for, beside those of `is_finetuning`."""
        names = (
            *("source_prefix", "labels", "metric_names", "test_file", "do_predict", "generation_num_beams"),
            *("max_predict_samples", "do_regression", "return_entity_level_metrics", "label_all_tokens"),
        )
        return tuple(name for name in names if getattr(self, name))

    @property
    def text_column(self) -> str:
        """`text_column_name`, or its default."""
        return self.text_column_name or DOCUMENTS

    @property
    def inputs_length(self) -> int:
        """Tokens of the inputs."""
        return self.max_seq_length or self.row_answers.max_seq_length

    @property
    def row_answers(self) -> RowAnswers:
        return ANSWERS[self.answers]

    @property
    def has_word_task(self) -> bool:
        return self.task_name in WORD_TASKS

    @property
    def is_finetuning(self) -> bool:
        """Whether rows with an answer are learned, and not masked spans."""
        return any(x is not None for x in (self.benchmark, self.label_column_name, self.languages, self.questions))

    @property
    def questions(self) -> tuple[str, str, str] | None:
        """The columns of questions, contexts and answers."""
        given = (self.question_column, self.context_column, self.answer_column)
        if given == (None, None, None):
            return None
        return given[0] or "question", given[1] or "context", given[2] or "answers"

    @property
    def languages(self) -> tuple[str, str] | None:
        """Of a translation, from which and to which: the keys of its rows, "ru" of "ru_RU" as in run_translation.py."""
        if self.source_lang is None or self.target_lang is None:
            return None
        return self.source_lang.split("_")[0], self.target_lang.split("_")[0]

    @property
    def entry(self) -> str | None:
        """The benchmark's entry in the table of data sets, such as "glue_sst2"; None without a benchmark."""
        if self.benchmark is None:
            return None
        return f"{self.benchmark}_{self.dataset_name}" if self.dataset_name else self.benchmark

    @property
    def best_mode(self) -> str:
        """ "max" or "min" of `metric_for_best_model`."""
        is_loss = self.metric_for_best_model.removeprefix("eval_") in ("loss", "perplexity")
        return "max" if (self.greater_is_better if self.greater_is_better is not None else not is_loss) else "min"

    @property
    def uses_adafactor(self) -> bool:
        return self.adafactor or self.optim in ("adafactor", script_names.OPTAX_ADAFACTOR)

    @property
    def has_period_of_epochs(self) -> bool:
        """Whether something is done every epoch, so that the examples of an epoch are counted."""
        return any(getattr(self, name) == "epoch" for name in period_keys.STRATEGIES)

    @property
    def writes_texts(self) -> bool:
        """Whether answers are generated."""
        return self.is_finetuning and self.answers == TEXT

    @property
    def searches(self) -> bool:
        """Whether a generated answer is searched for with beams."""
        return (self.generation_num_beams or 1) > 1

    @property
    def used_splits(self) -> list[str]:
        """Of the data, those that are read."""
        used = {"train": self.do_train, "validation": self.do_eval, "test": self.do_predict}
        return [split for split, is_used in used.items() if is_used]

    @property
    def has_own_length(self) -> bool:
        """Whether rows have the length of the keys, or the script's, and not the tokenizer's `model_max_length`.

        run_ner.py goes by the tokenizer where no key says a length; summaries and translations have lengths of their
        own.
        """
        if self.answers == WORD_LABELS:
            return self.max_seq_length is not None
        of_texts = self.is_finetuning and self.answers == TEXT and self.questions is None
        return self.languages is not None or (of_texts and self.script not in script_names.OF_LABELS)

    def counts_examples(self, is_remote: Callable[[str], bool]) -> bool:
        """Whether the training examples are counted: for epochs, and with `max_steps` only of files that are here."""
        if not self.do_train:
            return False
        return self.max_steps < 0 or (self.has_period_of_epochs and not is_remote("train"))

    @property
    def learns_masks(self) -> bool:
        """Whether a key says that an encoder learns documents."""
        of_documents = self.task or self.use_nsp or self.whole_word_mask
        return bool(of_documents or self.script == script_names.MASKS)

    @property
    def asks_for_labels(self) -> bool:
        """Whether a key says that an encoder learns rows with labels."""
        return bool(
            self.label_column_name
            or self.keys_of_rows
            or self.has_word_task
            or self.script in script_names.OF_LABELS
            or self.answers != TEXT
            or self.do_regression is not None
        )

    @property
    def row_template(self) -> str | tuple[str, ...] | None:
        """The template of a row's input, or the text before a translation or question; None where an entry has it.

        A tuple is the template of one text, in which [SEP] does not stand between two.
        """
        if self.entry is not None:
            return None
        if self.languages is not None or self.questions is not None:
            return self.source_prefix
        columns = self.text_column
        prefix, between = (
            text.replace("{", "{{").replace("}", "}}") for text in (self.source_prefix, self.text_column_delimiter)
        )
        if "{" in columns:
            return prefix + columns
        template = prefix + between.join(f"{{{name}}}" for name in columns.split(","))
        return (template,) if self.answers != TEXT and "[SEP]" in prefix + between else template

    @property
    def row_values(self) -> tuple[Any, ...]:
        """The arguments of `script_task.row_dataset`."""
        columns = (self.entry, self.row_template, self.label_column_name or "", self.labels)
        return *columns, self.languages, self.metrics, self.questions, self.answers, self._drops_empty

    @property
    def _drops_empty(self) -> bool:
        """Whether rows without a text or an answer are left out: of run_summarization.py, not of run_translation.py."""
        is_other = (self.entry, self.languages, self.questions) != (None, None, None)
        return self.script == script_names.SUMMARIES and self.answers == TEXT and not is_other

    @property
    def word_values(self) -> tuple[Any, ...]:
        """The arguments of `script_task.word_dataset`."""
        of_words = self.return_entity_level_metrics, self.label_all_tokens
        return self.text_column, self.label_column_name, list(self.labels or ()), *of_words

    @property
    def best_name(self) -> str:
        """`metric_for_best_model` as the results name it, without `eval_`."""
        name = self.metric_for_best_model.removeprefix("eval_")
        of_entities = self.return_entity_level_metrics and name in ("precision", "recall", "f1", "accuracy")
        return f"overall_{name}" if of_entities else name

    @property
    def measured(self) -> tuple[str, str]:
        """`metric_for_best_model` in metrics.jsonl: the folder of its evaluation, and its name there.

        The loss is that of given targets; other metrics of a fine-tuning are those of answers.
        """
        name = self.best_name
        if name == "gen_len":
            return "inference_eval", "tokens_per_prediction"
        if name in ("loss", "perplexity"):  # The second rises and falls with the first.
            return "training_eval", self.row_answers.loss
        name = self.row_answers.names.get(name, name)
        return ("inference_eval", f"eval/{name}") if self.is_finetuning else ("training_eval", name)

    @property
    def looks_at_best(self) -> bool:
        """Whether something is done by `metric_for_best_model`."""
        by_it = self.load_best_model_at_end or self.early_stopping_patience or self.use_lr_drop
        return bool(by_it) or self.save_strategy == "best"

    def steps_between(self, what: str, total: int) -> int:
        """Steps between two checkpoints ("save"), evaluations ("eval") or lines ("logging") of `total` steps.

        A share of them is rounded up, as transformers does it.
        """
        given = getattr(self, f"{what}_steps")
        if given is None:
            given = period_keys.LOGGING_STEPS if what == "logging" else self.save_steps
        if what == "save" and given < 1 and self.load_best_model_at_end:
            # Rounded one by one, checkpoints would miss their evaluations.
            evaluated = self.eval_steps or given
            return round(given / evaluated) * max(1, math.ceil(total * evaluated))
        return max(1, math.ceil(total * given)) if given < 1 else int(given)

    @property
    def of_trainer(self) -> str | None:
        """The checkpoint of Hugging Face's Trainer that the training goes on from (`trainer_checkpoints`)."""
        return self.model_name_or_path if self.model_name_or_path == self.resume_from_checkpoint else None

    @property
    def work_folder(self) -> Path:
        """Where the files of a call lie that are no results: OUTPUT_DIR, or its `evaluated` where nothing is trained.

        So an evaluation leaves the run, or the model of Hugging Face, as it is that OUTPUT_DIR holds. If that is the
        model to evaluate, the folder is beside it.
        """
        out = local_path(self.output_dir)
        if self.do_train:
            return out
        model = self.model_name_or_path
        if model is not None and local_path(model) in (out, *out.parents):
            return out.with_name(f"{out.name}_evaluated")
        return out / "evaluated"

    @property
    def overwrites(self) -> bool:
        """Whether a run of other values makes room; a checkpoint to resume from comes first, as in the scripts."""
        resumes = self.resume_from_checkpoint is not None and self.resume_from_checkpoint.lower() != "false"
        return self.overwrite_output_dir and self.do_train and not resumes

    @property
    def pushes(self) -> bool:
        return self.push_to_hub or self.push_to_hub_final_step

    def without_secrets(self) -> dict[str, Any]:
        """All keys but the token, for the file that is kept beside a run."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name != "hub_token"}
