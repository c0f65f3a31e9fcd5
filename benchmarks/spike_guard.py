"""What looking for spikes costs a training step: the norm of the gradient, and the comparison with the steps before.

    python -m benchmarks.spike_guard --rounds 10

The network of the quickstart (2.5M parameters) or a T5 1.1 small (`--size small`), rows of 128 inputs and 48 targets,
with and without, in turn in one process. Prints JSON: cpu-seconds of a step, and the ratio with over without, the
median over rounds beside its range.

The ratio's noise is larger than what is looked for. With `--parts` what is added is timed by itself instead, in turn
with steps: the norm of a gradient that lies in memory and the average, ten times in one program, since in a step they
are a part of one too; and the comparison. Each is given as a share of a step without them.
"""

import argparse
import functools
import json
import statistics
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

SIZES: dict[str, dict[str, Any]] = {
    "quickstart": {
        "vocab_size": 4096, "emb_dim": 128, "num_heads": 4, "head_dim": 32, "num_encoder_layers": 3,
        "num_decoder_layers": 3, "mlp_dim": 384,
    },
    "small": {
        "vocab_size": 32128, "emb_dim": 512, "num_heads": 6, "head_dim": 64, "num_encoder_layers": 8,
        "num_decoder_layers": 8, "mlp_dim": 1024,
    },
}  # fmt: skip
ROWS = {"quickstart": 16, "small": 8}
INPUTS, TARGETS, WINDOW = 128, 48, 256
REPEATS = 10


def _batch(rows: int, vocab_size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    inputs, targets = (rng.integers(3, vocab_size, (rows, n), dtype=np.int32) for n in (INPUTS, TARGETS))
    return {
        "encoder_input_tokens": inputs,
        "decoder_target_tokens": targets,
        "decoder_input_tokens": np.pad(targets, ((0, 0), (1, 0)))[:, :-1],
        "decoder_loss_weights": np.ones_like(targets),
    }


def _stepper(size: str, rows: int, guarded: bool, averaged: bool) -> Callable[[], None]:
    """A step, after which the loss is read, as the training loop does."""
    import jax

    from limba import models
    from limba.addons.spikes import going_back, spike_rule
    from limba.network import t5
    from limba.optimizers import adafactor, averaging, schedules
    from limba.partitioning import meshes
    from limba.training import trainer

    class Vocabulary:
        eos_id, pad_id, extra_ids, vocab_size = 1, 0, 100, SIZES[size]["vocab_size"]

    vocabulary: Any = Vocabulary()
    network = t5.Transformer(t5.T5Config(dropout_rate=0.0, mlp_activations=("gelu", "linear"), **SIZES[size]))
    optimizer: Any = adafactor.Adafactor()
    if averaged:
        optimizer = averaging.AveragedOptimizer(optimizer)
    model = models.EncoderDecoderModel(
        network, vocabulary, vocabulary, optimizer, loss_normalizing_factor="NUM_REAL_TARGET_TOKENS"
    )
    made = trainer.Trainer(
        model,
        meshes.PjitPartitioner(1),
        schedules.create_learning_rate_scheduler("constant", 1e-3),
        measures_gradient=guarded,
    )
    state = made.new_state(jax.random.key(0))
    batch = made.partitioner.shard_batch(_batch(rows, SIZES[size]["vocab_size"]))
    guard, before = spike_rule.SpikeGuard(window=WINDOW), deque[spike_rule.Figures](maxlen=WINDOW)
    before.extend(spike_rule.Figures(10.0 + i % 7 / 10, 1.0 + i % 5) for i in range(WINDOW))

    def step() -> None:
        nonlocal state
        state, metrics = made.train_step(state, batch)
        if guarded:
            figures = going_back.figures_of(metrics)
            spike_rule.find(guard, list(before), figures)
            before.append(figures)
        else:
            float(metrics["loss"].compute())

    step()
    return step


def _parts(size: str, averaged: bool) -> dict[str, Callable[[], None]]:
    """What looking for spikes and keeping an average add to a step, each by itself."""
    import jax
    import jax.numpy as jnp
    import optax

    from limba.addons.spikes import going_back, spike_rule
    from limba.models import metrics as metrics_lib
    from limba.network import t5

    network = t5.Transformer(t5.T5Config(dropout_rate=0.0, mlp_activations=("gelu", "linear"), **SIZES[size]))
    tokens = [jnp.ones((1, 8), jnp.int32)] * 3
    weights = jax.jit(lambda key: network.init(key, *tokens, enable_dropout=False)["params"])(jax.random.key(0))

    # Each repetition takes what the one before has given, so that none is left out.
    @jax.jit
    def norms(gradient):
        scaled = lambda scale: jax.tree.map(lambda x: x * scale, gradient)  # noqa: E731
        return jax.lax.fori_loop(0, REPEATS, lambda _, scale: 1.0 + 1e-9 * optax.global_norm(scaled(scale)), 1.0)

    @functools.partial(jax.jit, donate_argnums=0)
    def averages(mean, now):
        mix = lambda _, mean: jax.tree.map(lambda a, b: a + 0.001 * (b - a), mean, now)  # noqa: E731
        return jax.lax.fori_loop(0, REPEATS, mix, mean)

    guard, before = spike_rule.SpikeGuard(window=WINDOW), deque[spike_rule.Figures](maxlen=WINDOW)
    before.extend(spike_rule.Figures(10.0 + i % 7 / 10, 1.0 + i % 5) for i in range(WINDOW))
    metrics = {"loss": metrics_lib.per_step(jnp.float32(10.0)), "gradient_norm": metrics_lib.per_step(jnp.float32(2.0))}

    def compare() -> None:
        figures = going_back.figures_of(metrics)
        spike_rule.find(guard, list(before), figures)
        before.append(figures)

    mean = jax.tree.map(jnp.copy, weights) if averaged else None

    def average() -> None:
        nonlocal mean
        mean = jax.block_until_ready(averages(mean, weights))

    parts = {"norm": lambda: norms(weights).block_until_ready(), "comparison": compare}
    if averaged:
        parts["average"] = average
    for part in parts.values():
        part()
    return parts


def _share_of_parts(size: str, rows: int, averaged: bool, steps: int, rounds: int) -> dict[str, Any]:
    """Cpu-seconds of a step and of each part, medians over rounds in turn, and the parts' shares of the step."""
    timed = {"step": _stepper(size, rows, False, False)} | _parts(size, averaged)
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(rounds):
        for name, run in timed.items():
            began = time.process_time()
            for _ in range(steps):
                run()
            repeats = REPEATS if name in ("norm", "average") else 1
            seconds[name].append((time.process_time() - began) / steps / repeats)
    medians = {name: statistics.median(x) for name, x in seconds.items()}
    shares = {name: medians[name] / medians["step"] for name in timed if name != "step"}
    return {
        "cpu_seconds": {name: round(x, 6) for name, x in medians.items()},
        "shares_of_a_step": {name: round(x, 5) for name, x in shares.items()} | {"all": round(sum(shares.values()), 5)},
        "largest_share_of_a_round": round(
            max(sum(seconds[name][i] for name in shares) / seconds["step"][i] for i in range(rounds)),
            5,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="quickstart")
    parser.add_argument("--steps", type=int, default=10, help="of a side in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--average", action="store_true", help="the side with also keeps an average of the parameters")
    parser.add_argument("--rows", type=int, help=f"of a batch {ROWS}")
    parser.add_argument("--parts", action="store_true", help="time what is added by itself, beside steps without it")
    flags = parser.parse_args()
    rows = flags.rows or ROWS[flags.size]
    if flags.parts:
        of_parts = _share_of_parts(flags.size, rows, flags.average, flags.steps, flags.rounds)
        print(json.dumps({"size": flags.size, "rows": rows, "average": flags.average} | of_parts))
        return
    steppers = {
        name: _stepper(flags.size, rows, name == "with", name == "with" and flags.average)
        for name in ("without", "with")
    }
    seconds: dict[str, list[float]] = {name: [] for name in steppers}
    for _ in range(flags.rounds):
        for name, step in steppers.items():
            began = time.process_time()
            for _ in range(flags.steps):
                step()
            seconds[name].append((time.process_time() - began) / flags.steps)
    ratios = [a / b for a, b in zip(seconds["with"], seconds["without"], strict=True)]
    print(
        json.dumps(
            {
                "size": flags.size,
                "rows": rows,
                "average": flags.average,
                "cpu_seconds_of_a_step": {name: round(statistics.median(x), 4) for name, x in seconds.items()},
                "ratio": round(statistics.median(ratios), 3),
                "range": [round(min(ratios), 3), round(max(ratios), 3)],
            }
        )
    )


if __name__ == "__main__":
    main()
