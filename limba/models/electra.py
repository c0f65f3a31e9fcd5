"""ELECTRA (arXiv:2003.10555): a small generator fills masks, and the encoder says of each token whether it is a guess.

    MODEL = @models.ElectraModel()      (gin/models/electra/base.gin)

Rows are those of a masked language model. The generator learns to fill their masks, and one of its guesses is drawn for
each; where it is the original token, that token counts as not replaced. Gradients of the detection do not reach the
generator through the guesses, but both learn the tables of tokens, positions and types, which they share.

The generator's own parameters lie under `replaced_token_detection`, which fine-tuning and exports leave out.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.core
import flax.linen as nn
import flax.traverse_util
import jax
import jax.numpy as jnp
import optax

from limba.checkpoint_files import pretraining_parts
from limba.data import text_pieces
from limba.data.contract import Batch
from limba.files import number_ranges
from limba.files.number_ranges import Range
from limba.models import losses
from limba.models import metrics as metrics_lib
from limba.models.base_model import Vocabulary
from limba.models.encoder_only_model import EncoderOnlyModel
from limba.network.encoders import token_detector
from limba.network.encoders.config import EncoderConfig
from limba.network.encoders.encoder import MaskedLanguageModel
from limba.network.encoders.token_detector import ReplacedTokenDetector
from limba.optimizers.definitions import OptimizerDef

Array = jax.Array
PyTree = Any

# Folded into a step's key, and the key of evaluations: guesses are drawn with it.
_STREAM = 0xE1EC


class Detection(NamedTuple):
    """Of the tokens of text: the detector's loss, summed, and how many it is right about."""

    loss: Array
    right: Array


class ElectraModel(EncoderOnlyModel):
    """A generator and a detector of replaced tokens, trained together.

    The loss is the generator's on masked tokens plus `detection_weight` times the detector's mean over all tokens but
    padding. If the generator's is a sum, the other is multiplied by the number of masked tokens. Metrics are those of
    the generator's predictions, `replaced_tokens/…`, and `loss`, of both.
    """

    def __init__(
        self,
        module: nn.Module,
        vocabulary: Vocabulary,
        optimizer_def: OptimizerDef | optax.GradientTransformation,
        feature_converter_cls: Callable | None = None,
        label_smoothing: float = 0.0,
        z_loss: float = 0.0,
        loss_normalizing_factor: losses.LossNormalizingFactor = None,
        generator_layers: float = 1.0,
        generator_width: float = 0.25,
        detection_weight: float = 50.0,
    ):
        """Args that `EncoderOnlyModel` does not have:

        module: a `limba.network.encoders.token_detector.ReplacedTokenDetector`.
        generator_layers, generator_width: shares of the encoder's; see `token_detector.generator_config`.
        detection_weight: of the detector's loss.

        Raises:
          ValueError: for another module, and for numbers out of range.
        """
        super().__init__(
            module,
            vocabulary,
            optimizer_def,
            feature_converter_cls,
            label_smoothing,
            z_loss,
            loss_normalizing_factor,
        )
        if not isinstance(module, ReplacedTokenDetector):
            raise ValueError(
                f"ElectraModel.module is {type(module).__name__}, and it takes a ReplacedTokenDetector: bind "
                "models.ElectraModel.module = @token_detector.ReplacedTokenDetector()."
            )
        for name, share in (("generator_layers", generator_layers), ("generator_width", generator_width)):
            if not number_ranges.is_number(share) or not 0 < share <= 1:
                raise ValueError(
                    f"ElectraModel.{name} is {share!r}; it is a share of the encoder's, above 0, at most 1."
                )
        number_ranges.check("ElectraModel.detection_weight", detection_weight, Range())
        self.generator_layers, self.generator_width = generator_layers, generator_width
        self.detection_weight = detection_weight

    @property
    def generator_config(self) -> EncoderConfig:
        """Of the generator, for the network as it is now: `limba plan` tries others."""
        return token_detector.generator_config(self.module.config, self.generator_layers, self.generator_width)

    @property
    def generator(self) -> MaskedLanguageModel:
        return MaskedLanguageModel(self.generator_config)

    def get_initial_variables(
        self, rng: Array, input_shapes: Mapping[str, Any], input_types: Mapping[str, Any] | None = None
    ) -> Mapping[str, PyTree]:
        of_detector: Any = super().get_initial_variables(rng, input_shapes, input_types)
        variables: dict[str, Any] = flax.core.unfreeze(of_detector)
        tokens = jnp.ones(input_shapes["encoder_input_tokens"], jnp.int32)
        of_generator: Any = self.generator.init(jax.random.fold_in(rng, _STREAM), tokens, enable_dropout=False)
        for collection, values in flax.core.unfreeze(of_generator).items():
            variables[collection][pretraining_parts.NAME] = _own(values)
        return variables

    def _compute_logits(
        self,
        params: PyTree,
        batch: Batch,
        dropout_rng: Array | None = None,
        mutable: Any = False,
        other_variables: PyTree | None = None,
        **options: Any,
    ) -> Any:
        """The generator's logits of the masked places `[batch, masked, vocab]`."""
        inputs, places = self._network_inputs(batch)
        return self.generator.apply(
            {"params": _whole(params)} | (other_variables or {}),
            *inputs,
            **places,
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
            mutable=mutable,
            **options,
        )

    def loss_fn(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> tuple[Array, metrics_lib.Metrics]:
        """See `ElectraModel`. Without an rng, in an evaluation, guesses are drawn with the same key for each batch."""
        rngs: Any = (None, jax.random.key(_STREAM), None)
        if dropout_rng is not None:
            rngs = jax.random.split(dropout_rng, 3)
        with jax.named_scope("generator"):
            logits = self._compute_logits(params, batch, rngs[0])
        with jax.named_scope("loss"):
            loss, metrics = self._loss_and_metrics(logits, batch, dropout_rng)
        originals, corrupted = self._corrupted(logits, batch, rngs[1])
        with jax.named_scope("detector"):
            found = self.detection(params, {**batch, "encoder_input_tokens": corrupted}, originals, rngs[2])
        real = jnp.sum((originals != self.module.config.pad_id).astype(jnp.float32))
        masked = batch["masked_lm_positions"] > 0
        generator = losses.token_losses(logits, batch["decoder_target_tokens"]).loss
        metrics["replaced_tokens"] = metrics_lib.ReplacedTokenSums(
            jnp.sum(generator * masked),
            jnp.sum(masked.astype(jnp.float32)),
            found.loss,
            found.right,
            jnp.sum((corrupted != originals).astype(jnp.float32)),
            real,
        )
        loss += self.detection_weight * found.loss / jnp.maximum(real, 1.0) * self._loss_of_a_mean(batch)
        metrics["loss"] = metrics_lib.per_step(loss)
        return loss, metrics

    def detection(self, params: PyTree, batch: Batch, originals: Array, dropout_rng: Array | None = None) -> Detection:
        """Sums of the detector over the tokens of rows; padding does not count.

        Args:
          batch: whose `encoder_input_tokens` `[batch, length]` have guesses.
          originals: the tokens without guesses, int32 `[batch, length]`.
        """
        inputs, _ = self._network_inputs(batch)
        logits: Any = self.module.apply(
            {"params": params},
            *inputs,
            enable_dropout=dropout_rng is not None,
            rngs=None if dropout_rng is None else {"dropout": dropout_rng},
        )
        is_replaced, is_real = batch["encoder_input_tokens"] != originals, originals != self.module.config.pad_id
        return detection(logits[..., 0], is_replaced, is_real)

    def _corrupted(self, logits: Array, batch: Batch, rng: Array) -> tuple[Array, Array]:
        """The rows without masks, and with guesses in their place: int32 `[batch, length]`."""
        # A guess is text, as what it replaces was.
        is_text = jnp.asarray(text_pieces.of_vocabulary(self.input_vocabulary, logits.shape[-1]))
        guesses = sample(jnp.where(is_text, logits, -jnp.inf), rng)
        places = batch["masked_lm_positions"]
        rows = tuple(
            at_positions(places, places > 0, tokens, batch["encoder_input_tokens"])
            for tokens in (batch["decoder_target_tokens"], guesses)
        )
        return rows[0], rows[1]

    def _loss_of_a_mean(self, batch: Batch) -> Array | float:
        """What the generator's loss is if its mean over masked tokens is 1."""
        factor, weights = losses.normalizing_factor_and_weights(self._loss_normalizing_factor, batch)
        total = batch["decoder_target_tokens"].size if weights is None else jnp.sum(weights)
        return total if factor is None else total / factor


def at_positions(positions: Array, is_chosen: Array, values: Array | int, others: Array) -> Array:
    """`others` `[batch, length]` with values `[batch, masked]` at the chosen ones of the positions."""
    # Comparisons, not a scatter: they stay on the device that has the row.
    places = (positions[..., None] == jnp.arange(others.shape[1])) & is_chosen[..., None]
    values = jnp.broadcast_to(values, positions.shape)
    return jnp.where(jnp.any(places, axis=1), jnp.sum(jnp.where(places, values[..., None], 0), axis=1), others)


def sample(logits: Array, rng: Array) -> Array:
    """A token of each distribution, int32 `[batch, masked]`, from logits `[batch, masked, vocab]`; no gradient."""
    return jax.random.categorical(rng, jax.lax.stop_gradient(logits)).astype(jnp.int32)


def detection(logits: Array, is_replaced: Array, is_text: Array) -> Detection:
    """Sums over the text of `[batch, length]`: binary cross entropy, and hits.

    Args:
      is_replaced: the labels; a guess that is the original is none.
    """
    loss = jnp.where(is_replaced, jax.nn.softplus(-logits), jax.nn.softplus(logits))
    is_right = (logits > 0) == is_replaced
    return Detection(*(jnp.sum(jnp.where(is_text, x, 0.0)) for x in (loss, is_right.astype(jnp.float32))))


def _own(variables: PyTree) -> PyTree:
    """What a generator does not share; the names of axes end with `_axes`, and lie in the modules of the parameters."""
    flat = flax.traverse_util.flatten_dict(variables, sep="/")
    shared = tuple(f"{name}/" for name in pretraining_parts.SHARED)
    return flax.traverse_util.unflatten_dict({n: x for n, x in flat.items() if not n.startswith(shared)}, sep="/")


def _whole(params: PyTree) -> PyTree:
    """The generator's parameters, with those that it shares."""
    own = params[pretraining_parts.NAME]
    names = [name.partition("/")[2] for name in pretraining_parts.SHARED if "/" in name]
    tables = {name: params["encoder"][name] for name in names if name in params["encoder"]}
    return {**own, "token_embedder": params["token_embedder"], "encoder": {**own["encoder"], **tables}}
