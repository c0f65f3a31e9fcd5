"""The rows of `benchmarks/quality.py`: the quickstart's recipe with other settings, for about the same cpu-seconds."""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Row:
    """One setting.

    Attributes:
      why: what is other than in the quickstart, in a few words.
      bindings: gin's, `NAME = VALUE`.
      gin_files: after the recipe.
      steps: of the training, chosen so that rows cost about the same.
    """

    why: str
    bindings: Sequence[str] = ()
    gin_files: Sequence[str] = ()
    steps: int = 200


def _network(width: int, heads: int, layers: int, mlp: int, head_dim: int = 32) -> list[str]:
    sizes = {"emb_dim": width, "num_heads": heads, "head_dim": head_dim, "mlp_dim": mlp}
    sizes |= {"num_encoder_layers": layers, "num_decoder_layers": layers}
    return [f"network.T5Config.{name} = {value}" for name, value in sizes.items()]


# Tables of random values reach their rate at once.
_RANDOM = ["train_script.train.initial_values_fn = None", "optimizers.adamw_scale.vocab_warmup_steps = 0"]
_RATE = "schedules.create_learning_rate_scheduler.base_learning_rate"
_FACTORS = "schedules.create_learning_rate_scheduler.factors"
_START = "start_from_counts.StartFromCounts"
_STANDARD = [
    "train/data.DatasetConfig.mixture_or_task_name = 'quickstart_span_corruption'",
    "train/data.DatasetConfig.task_feature_lengths = %TASK_FEATURE_LENGTHS",
]
_SPACTOR = "gin/runs/spactor.gin"
_LARGE = _network(256, 4, 4, 512, head_dim=64)
_SHALLOW = _network(128, 4, 2, 384)
_COMBINED = ["optimizers.adamw_scale.vocab_rate = 0.03", f"{_RATE} = 0.015", f"{_START}.output_scale = 0.02"]
# T5X's pre-training: Adafactor, and a rate that does not fall in the first 10,000 steps.
_T5X = [
    *(*_RANDOM, *_STANDARD, "LOSS_NORMALIZING_FACTOR = None", f"{_FACTORS} = 'constant * rsqrt_decay'"),
    *(f"{_RATE} = 1.0", "schedules.create_learning_rate_scheduler.warmup_steps = 10000"),
]

ROWS = {
    "quickstart": Row("nothing but fewer steps"),
    "random": Row("random initial values", [*_RANDOM]),
    "random_standard": Row("random initial values, 15% masked", [*_RANDOM, *_STANDARD]),
    "t5x": Row("T5X's recipe: random, 15% masked, Adafactor", _T5X, ["gin/optimizers/adafactor.gin"], steps=240),
    "random_vocab_rate_1": Row(
        "random initial values, tables at the full rate", [*_RANDOM, "optimizers.adamw_scale.vocab_rate = 1.0"]
    ),
    "standard": Row("15% masked", _STANDARD),
    "fewer_blanks_later": Row(
        "15% masked in the last third",
        [
            "train/data.DatasetConfig.stages = [@later/data.Stage()]",
            "later/data.Stage.begins = 135",
            "later/data.Stage.mixture_or_task_name = 'quickstart_span_corruption'",
            "later/data.Stage.task_feature_lengths = %TASK_FEATURE_LENGTHS",
        ],
    ),
    "longer_rows_later": Row(
        "rows of half the length, twice as many, in the first half",
        [
            "half/objectives.span_corruption_lengths.inputs_length = 52",
            "half/objectives.span_corruption_lengths.noise_density = 0.33",
            "train/data.DatasetConfig.task_feature_lengths = @half/objectives.span_corruption_lengths()",
            "train/data.DatasetConfig.batch_size = 32",
            "train/data.DatasetConfig.stages = [@later/data.Stage()]",
            "later/data.Stage.begins = 100",
            "later/data.Stage.task_feature_lengths = @many_blanks/objectives.span_corruption_lengths()",
            "later/data.Stage.batch_size = 16",
        ],
    ),
    "vocab_rate_1": Row("tables at the full rate", ["optimizers.adamw_scale.vocab_rate = 1.0"]),
    "vocab_rate_0.3": Row("tables at 0.3 of the rate", ["optimizers.adamw_scale.vocab_rate = 0.3"]),
    "vocab_rate_0.03": Row("tables at 0.03 of the rate", ["optimizers.adamw_scale.vocab_rate = 0.03"]),
    "combined": Row("tables at 0.03 of the rate 0.015, output kernels start at 0.02", _COMBINED),
    "combined_shallow": Row("the same, d 128, 2+2 layers", [*_COMBINED, *_SHALLOW], steps=270),
    "rate_0.01": Row("rate 0.01", [f"{_RATE} = 0.01"]),
    "rate_0.015": Row("rate 0.015", [f"{_RATE} = 0.015"]),
    "rate_0.06": Row("rate 0.06", [f"{_RATE} = 0.06"]),
    "constant": Row("no decay", [f"{_FACTORS} = 'constant * linear_warmup'"]),
    "rsqrt": Row(
        "rate falls with the root of the step", [f"{_FACTORS} = 'constant * linear_warmup * rsqrt_normalized_decay'"]
    ),
    "b2_0.999": Row("b2 0.999", ["optimizers.adamw_scale.b2 = 0.999"]),
    "weight_decay": Row("weight decay 1e-4 a step", ["optimizers.adamw_scale.weight_decay = 0.01"]),
    "no_z_loss": Row("no z-loss", ["Z_LOSS = 0.0"]),
    "z_loss_1e-3": Row("z-loss 1e-3", ["Z_LOSS = 0.001"]),
    "dropout": Row("dropout 0.1", ["DROPOUT_RATE = 0.1"]),
    "label_smoothing": Row("label smoothing 0.1", ["LABEL_SMOOTHING = 0.1"]),
    "batch_8": Row("batch 8", ["BATCH_SIZE = 8"], steps=400),
    "batch_32": Row("batch 32", ["BATCH_SIZE = 32"], steps=100),
    "large": Row("8.4M parameters: d 256, 4+4 layers", _LARGE, steps=75),
    "large_standard": Row("8.4M parameters, 15% masked", [*_LARGE, *_STANDARD], steps=75),
    "large_t5x": Row("8.4M parameters, T5X's recipe", [*_LARGE, *_T5X], ["gin/optimizers/adafactor.gin"], steps=90),
    "large_random": Row("8.4M parameters, random initial values", [*_RANDOM, *_LARGE], steps=75),
    "shallow": Row("d 128, 2+2 layers", _SHALLOW, steps=270),
    "wide": Row("d 192, 2+2 layers", _network(192, 6, 2, 512), steps=155),
    "deep": Row("d 128, 4+4 layers", _network(128, 4, 4, 384), steps=160),
    "no_fit": Row("counts factored, not fitted", [f"{_START}.fit_steps = 0"]),
    "left_alone": Row("a start from the left neighbour alone", [f"{_START}.right_rank = 0"]),
    "left_start_alone": Row("no training: that start alone", [f"{_START}.right_rank = 0"], steps=1),
    "large_left_alone": Row(
        "8.4M parameters, a start from the left neighbour alone", [*_LARGE, f"{_START}.right_rank = 0"], steps=75
    ),
    "rank_64": Row("rank 64 of the bigram", [f"{_START}.rank = 64"]),
    "output_scale_0.02": Row("output kernels start at 0.02", [f"{_START}.output_scale = 0.02"]),
    "output_scale_1": Row("output kernels start at 1", [f"{_START}.output_scale = 1.0"]),
    "start_alone": Row("no training: the start alone", steps=1),
    "spactor": Row("replaced-token detection in the first half", gin_files=[_SPACTOR], steps=180),
    "spactor_random": Row(
        "random initial values, replaced-token detection in the first half", [*_RANDOM], [_SPACTOR], steps=180
    ),
    "muon": Row("Muon for kernels, AdamW for the rest, rate 3e-3", [f"{_RATE} = 3e-3"], ["gin/optimizers/muon.gin"]),
    "adafactor": Row(
        "Adafactor, rate 0.02",
        [f"{_RATE} = 0.02", "LOSS_NORMALIZING_FACTOR = None"],
        ["gin/optimizers/adafactor.gin"],
    ),
}

# Whether a rate that fits one width fits another: adamw_scale with and without `base_width`, from random values.
_WIDTHS, _RATES = (64, 128, 256), (0.01, 0.03, 0.1)


def _of_width(width: int, rate: float, base_width: int | None) -> Row:
    bindings = [*_RANDOM, *_STANDARD, *_network(width, width // 32, 3, 3 * width), f"{_RATE} = {rate}"]
    bindings += ["optimizers.adamw_scale.vocab_rate = 1.0", f"optimizers.adamw_scale.base_width = {base_width}"]
    return Row(f"width {width}, rate {rate}" + (f", base_width {base_width}" if base_width else ""), bindings)


ROWS |= {f"width_{width}_rate_{rate}": _of_width(width, rate, None) for width in _WIDTHS for rate in _RATES}
ROWS |= {f"width_{width}_rate_{rate}_base": _of_width(width, rate, 128) for width in (64, 256) for rate in _RATES}

# How much of a start from counts remains: three sizes, each trained until its curve is nearly flat or a quarter of an
# hour is over. Random values have the full rate for the tables, which is best for them.
_SIZES = {
    "2.5M": ([], 2400),
    "8M": ([*_LARGE, f"{_RATE} = 0.03"], 800),  # pretrain_laptop.gin's rate: 0.06 is for smaller networks
    "48M": ([*_network(512, 6, 8, 1024, head_dim=64), f"{_RATE} = 0.03"], 250),
}


def _of_size(name: str, is_random: bool) -> Row:
    sizes, steps = _SIZES[name]
    start = [*_RANDOM, "optimizers.adamw_scale.vocab_rate = 1.0"] if is_random else []
    why = f"{name} parameters" + (", random initial values, tables at the full rate" if is_random else "")
    return Row(why, [*sizes, *start, f"EVAL_PERIOD = {steps // 4}"], steps=steps)


ROWS |= {
    f"size_{name}{'_random' * is_random}": _of_size(name, is_random) for name in _SIZES for is_random in (False, True)
}

# What a default is worth at two sizes, in runs of half that length.
_CHOICES = {
    "": Row("the recipe"),
    "_left_alone": ROWS["left_alone"],
    "_standard": ROWS["standard"],
    "_adafactor": ROWS["adafactor"],
    "_rsqrt": ROWS["rsqrt"],
    "_rate_0.015": ROWS["rate_0.015"],
    "_rate_0.03": Row("rate 0.03", [f"{_RATE} = 0.03"]),
    "_rate_0.06": ROWS["rate_0.06"],
    "_vocab_rate_0.1": Row("tables at a tenth of the rate", ["optimizers.adamw_scale.vocab_rate = 0.1"]),
    "_vocab_rate_1": ROWS["vocab_rate_1"],
    "_output_scale_0.1": Row("output kernels start at 0.1", [f"{_START}.output_scale = 0.1"]),
}


def _of_half(size: str, choice: Row) -> Row:
    sizes, steps = _SIZES[size]
    return Row(f"{size}, half: {choice.why}", [*sizes, *choice.bindings], choice.gin_files, steps=steps // 2)


ROWS |= {f"half_{size}{name}": _of_half(size, choice) for size in ("2.5M", "8M") for name, choice in _CHOICES.items()}

# T5 1.1 small with 16,000 pieces (60M parameters): this recipe in a third of the steps of T5X's.
_T5_SMALL = [*_network(512, 6, 8, 1024, head_dim=64), "EVAL_PERIOD = 100"]
ROWS |= {
    "60M": Row("60M parameters, rate 0.03", [*_T5_SMALL, f"{_RATE} = 0.03"], steps=400),
    "60M_t5x": Row("60M parameters, T5X's recipe", [*_T5_SMALL, *_T5X], ["gin/optimizers/adafactor.gin"], steps=1200),
}

# A modern T5 beside T5 1.1 of as many parameters, both from random values with the full rate for the tables, for about
# as many cpu-seconds: a step of the modern one costs a quarter more.
_FULL_RATE = "optimizers.adamw_scale.vocab_rate = 1.0"
ROWS |= {
    "t5_1_1": Row("T5 1.1, random initial values, tables at the full rate", [*_RANDOM, _FULL_RATE], steps=1000),
    "t5_modern": Row("a modern T5, the same", gin_files=["gin/recipes/quickstart_modern.gin"], steps=800),
}
