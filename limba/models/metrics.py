"""Metrics as sums that add up over microbatches, steps and hosts, and become numbers at the end.

Most metrics are a ratio of two sums; merging metrics adds both. Names are T5X's TensorBoard tags. A model may return
anything else that is a pytree with `merge(other)` and `compute()`, such as clu's metrics.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from limba.data.contract import Batch
from limba.models.text_metrics import TextMetrics

Array = jax.Array


class Metric(Protocol):
    """What the engine needs of a metric; it must also be a pytree."""

    def merge(self, other: Any) -> Any: ...

    def compute(self) -> Any: ...


@flax.struct.dataclass
class Ratio:
    """`total / count`, both scalars. With `per_step`, `count` counts steps: microbatches of one add to `total` only."""

    total: Array
    count: Array
    per_step: bool = flax.struct.field(pytree_node=False, default=False)

    def merge(self, other: "Ratio") -> "Ratio":
        return Ratio(self.total + other.total, self.count + other.count, self.per_step)

    def compute(self) -> float:
        """The value; 0 when nothing was counted."""
        count = float(self.count)
        return float(self.total) / count if count else 0.0


@flax.struct.dataclass
class Last:
    """A value of which only the latest counts."""

    value: Array

    def merge(self, other: "Last") -> "Last":
        return other

    def compute(self) -> float:
        return float(self.value)


@flax.struct.dataclass
class Sum:
    """A total over microbatches and steps."""

    total: Array

    @classmethod
    def from_model_output(cls, values: Array, **_: Any) -> "Sum":
        return cls(jnp.sum(values))

    def merge(self, other: "Sum") -> "Sum":
        return Sum(self.total + other.total)

    def compute(self) -> float:
        return float(self.total)


@flax.struct.dataclass
class SumsByTask:
    """Sums over the target positions of each task of a mixture, float32 `[tasks]`."""

    loss: Array  # weighted and not normalized
    weights: Array

    @classmethod
    def of(cls, example_tasks: Array, loss: Array, weights: Array | None) -> "SumsByTask":
        """From `[batch, tasks]`, 1 at the task of each example, and the weighted loss and weights `[batch, length]`."""
        tasks = example_tasks.astype(jnp.float32)
        weights = jnp.ones(loss.shape, jnp.float32) if weights is None else weights
        # Not a matmul, which accelerators would make of bfloat16.
        return cls(*(jnp.sum(tasks * jnp.sum(x, axis=-1)[:, None], axis=0) for x in (loss, weights)))

    def merge(self, other: "SumsByTask") -> "SumsByTask":
        return SumsByTask(self.loss + other.loss, self.weights + other.weights)

    def compute(self, groups: Mapping[str, Sequence[int]]) -> dict[str, float]:
        """`loss/<group>`, per target token, and `target_tokens/<group>`, both only of groups that had examples."""
        result: dict[str, float] = {}
        for name, tasks in groups.items():
            loss, weights = (float(sum(x[task] for task in tasks)) for x in (self.loss, self.weights))
            if weights:
                result |= {f"loss/{name}": loss / weights, f"target_tokens/{name}": weights}
        return result


@flax.struct.dataclass
class ReplacedTokenSums:
    """Sums of replaced-token detection over a batch, float32 scalars; see `limba.models.electra`.

    Attributes:
      mlm_loss, masked: of the generator over masked tokens, and their number.
      rtd_loss, right, replaced, text: of the detector over tokens of text, those that it is right about, those that
        were replaced, and their number.
    """

    mlm_loss: Array
    masked: Array
    rtd_loss: Array
    right: Array
    replaced: Array
    text: Array

    def merge(self, other: "ReplacedTokenSums") -> "ReplacedTokenSums":
        return jax.tree.map(lambda a, b: a + b, self, other)

    def compute(self) -> dict[str, float]:
        """Means by name, in nats; none after the steps that have them."""
        masked, text = float(self.masked), float(self.text)
        values = {"replaced_tokens/mlm_loss": float(self.mlm_loss) / masked} if masked else {}
        if text:
            of_text = {"rtd_loss": self.rtd_loss, "rtd_accuracy": self.right, "share": self.replaced}
            values |= {f"replaced_tokens/{name}": float(x) / text for name, x in of_text.items()}
        return values


class AveragePerStep:
    """T5X's name for a sum over one step that is averaged over steps."""

    @staticmethod
    def from_model_output(values: Array, steps: int = 1, **_: Any) -> Ratio:
        return Ratio(jnp.asarray(jnp.sum(values), jnp.float32), jnp.float32(steps), per_step=True)


Metrics = dict[str, Any]  # of `Metric`
MEAN = "mean_of_target_tokens"  # what `compute` gives as "loss", whatever the loss that is minimized is divided by


def per_step(total: Array | float) -> Ratio:
    """A sum over one step, to be averaged over steps."""
    return Ratio(jnp.asarray(total, jnp.float32), jnp.float32(1), per_step=True)


def add(a: Metrics, b: Metrics) -> Metrics:
    """Metrics of two steps together."""
    return {name: a[name].merge(b[name]) for name in a}


def add_microbatches(a: Metrics, b: Metrics) -> Metrics:
    """Metrics of two microbatches of one step together."""
    total = add(a, b)
    return {
        name: Ratio(m.total, b[name].count, True) if isinstance(m, Ratio) and m.per_step else m
        for name, m in total.items()
    }


def is_of_minimized_loss(name: str) -> bool:
    """Whether a ratio has the loss that is minimized on top, which microbatches weigh as they weigh its gradient."""
    return "loss" in name and not name.startswith(("non_padding_fraction/", "pair_"))


def compute(metrics: Mapping[str, Any], task_groups: Mapping[str, Sequence[int]] | None = None) -> dict[str, float]:
    """Numbers, on the host; "loss" is `MEAN` if there is one. Sums of `task_groups` are reported together, by name."""
    values: dict[str, float] = {}
    for name, metric in jax.device_get(dict(metrics)).items():
        if isinstance(metric, SumsByTask):
            values |= metric.compute(task_groups or {})
        elif isinstance(metric, TextMetrics | ReplacedTokenSums):
            values |= metric.compute()
        else:
            values[name] = float(metric.compute())
    return values | ({"loss": values.pop(MEAN)} if MEAN in values else {})


def _nonzero_fraction(x: Array) -> Ratio:
    return Ratio(jnp.sum(x != 0).astype(jnp.float32), jnp.float32(x.size))


def _sequences(tokens: Array, segment_ids: Array | None) -> Ratio:
    """Sequences in the batch; packed ones count singly."""
    return per_step(jnp.sum(jnp.max(segment_ids, axis=-1)) if segment_ids is not None else tokens.shape[0])


def encoder_decoder_metrics(
    is_right: Array, batch: Batch, weights: Array | None, loss: Array, z_loss: Array
) -> Metrics:
    """T5X's model metrics of one batch.

    Args:
      is_right: `[batch, length]`, whether the likeliest word is the target.
      weights: `[batch, length]`; None weighs each target position 1.
      loss, z_loss: scalars, normalized; the loss has the z-loss in it.
    """
    targets = batch["decoder_target_tokens"]
    if weights is None:
        weights = jnp.ones(targets.shape, jnp.float32)
    hits = jnp.sum(is_right * weights)
    weight_sum = jnp.sum(weights)
    positions = jnp.float32(targets.size)
    metrics: Metrics = {
        "accuracy": Ratio(hits, weight_sum),
        "loss": per_step(loss),
        "loss_per_nonpadding_target_token": Ratio(loss, weight_sum),
        "loss_per_all_target_tokens": Ratio(loss, positions),
        "z_loss": per_step(z_loss),
        "z_loss_per_all_target_tokens": Ratio(z_loss, positions),
        "cross_ent_loss": per_step(loss - z_loss),
        "cross_ent_loss_per_all_target_tokens": Ratio(loss - z_loss, positions),
        "effective_batch_size/decoder": _sequences(targets, batch.get("decoder_segment_ids")),
        "non_padding_fraction/decoder": _nonzero_fraction(targets),
        "non_padding_fraction/loss_weights": _nonzero_fraction(weights),
    }
    overall = metrics["non_padding_fraction/decoder"]
    if "encoder_input_tokens" in batch:
        inputs = batch["encoder_input_tokens"]
        metrics["effective_batch_size/encoder"] = _sequences(inputs, batch.get("encoder_segment_ids"))
        metrics["non_padding_fraction/encoder"] = _nonzero_fraction(inputs)
        overall = overall.merge(metrics["non_padding_fraction/encoder"])
    metrics["non_padding_fraction/overall"] = overall
    return metrics
