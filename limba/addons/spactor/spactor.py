"""SpacTor (arXiv:2401.13160): span corruption with replaced-token detection in the first steps of a pre-training.

    train_script.train.model = @spactor.SpacTorModel()      (gin/runs/spactor.gin)

In the first stage a small generator guesses some of the text that span corruption has left in the inputs, and its
guesses take the place of these tokens. The T5 fills the blanks as always, and a head on its encoder says of each token
of text whether it was replaced, as ELECTRA's does (arXiv:2003.10555). The second stage is span corruption alone. The
stage is a function of the step; guesses are a function of seed and step.

Generator and head are parameters beside those of the T5, under `replaced_token_detection`. Only a training has them.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import flax.core
import jax
import jax.numpy as jnp
import numpy as np

from limba.addons.spactor import replaced_tokens
from limba.checkpoint_files import pretraining_parts
from limba.data import text_pieces
from limba.data.contract import Batch
from limba.files import number_ranges
from limba.files.number_ranges import AT_LEAST_0, Range
from limba.models import losses
from limba.models import metrics as metrics_lib
from limba.models.base_model import BaseTransformerModel
from limba.models.electra import Detection, at_positions, detection, sample
from limba.models.encoder_decoder_model import EncoderDecoderModel
from limba.network import t5

Array = jax.Array
PyTree = Any

# Folded into a step's key: what is drawn here must not be what dropout draws.
_STREAM = 0x5BAC


class SpacTorModel(EncoderDecoderModel):
    """An encoder-decoder model with replaced-token detection in its first steps of training.

    The first stage minimizes `span corruption + generator_weight * mlm + detection_weight * rtd`: `mlm` is the
    generator's mean over masked tokens, `rtd` the detector's mean over all tokens of text. If the loss of span
    corruption is a sum over target tokens, both are multiplied by their number, so weights do not depend on the
    normalization. The metric `loss` is that of span corruption alone.
    """

    def __init__(
        self,
        model: BaseTransformerModel,
        steps: int | None = None,
        total_steps: int | None = None,
        masked_share: float = 0.15,
        generator_layers: float = 0.34,
        generator_width: float = 0.5,
        generator_weight: float = 1.0,
        detection_weight: float = 10.0,
    ):
        """Args:
          model: of a run, without replaced-token detection.
          steps: of the first stage; None is half of `total_steps`.
          total_steps: of the run.
          masked_share: of the tokens of text of each row, at least one; the generator guesses them.
          generator_layers, generator_width: shares of the encoder's; see `replaced_tokens.generator_config`.
          generator_weight, detection_weight: of the two further losses.

        Raises:
          ValueError: for a model that is no T5 with encoder and decoder, and for numbers out of range.
        """
        _check_model(model)
        vars(self).update(vars(model))
        if steps is None and total_steps is None:
            raise ValueError("SpacTorModel.steps and total_steps are None; give the steps of the first stage (steps).")
        for name, value in (("steps", steps), ("total_steps", total_steps)):
            number_ranges.check(f"SpacTorModel.{name}", value, AT_LEAST_0._replace(or_none=True))
        number_ranges.check("SpacTorModel.masked_share", masked_share, Range(below=1, is_above=True), ", such as 0.15")
        shares = {"generator_layers": generator_layers, "generator_width": generator_width}
        for name, share in shares.items():
            if not number_ranges.is_number(share) or not 0 < share <= 1:
                raise ValueError(
                    f"SpacTorModel.{name} is {share!r}; it is a share of the encoder's, above 0, at most 1."
                )
        weights = {"generator_weight": generator_weight, "detection_weight": detection_weight}
        for name, weight in weights.items():
            number_ranges.check(f"SpacTorModel.{name}", weight, Range())
        self.steps = (total_steps or 0) // 2 if steps is None else steps
        self.masked_share, self.generator_layers, self.generator_width = masked_share, *shares.values()
        self.generator_weight, self.detection_weight = weights.values()
        self._step: Array | None = None

    @property
    def parts(self) -> replaced_tokens.ReplacedTokenDetection:
        """The generator and the head, for the network as it is now: `limba plan` tries others."""
        config = self.module.config
        small = replaced_tokens.generator_config(config, self.generator_layers, self.generator_width)
        return replaced_tokens.ReplacedTokenDetection(config, small)

    def get_initial_variables(
        self, rng: Array, input_shapes: Mapping[str, Any], input_types: Mapping[str, Any] | None = None
    ) -> Mapping[str, PyTree]:
        """The T5's own are those that it has alone, from the same key."""
        of_t5: Any = super().get_initial_variables(rng, input_shapes, input_types)
        variables: dict[str, Any] = flax.core.unfreeze(of_t5)
        shape = input_shapes["encoder_input_tokens"]
        encoded = jnp.zeros((*shape, self.module.config.emb_dim), self.module.config.dtype)
        of_parts: Any = self.parts.init(jax.random.fold_in(rng, _STREAM), jnp.ones(shape, jnp.int32), encoded)
        for collection, values in flax.core.unfreeze(of_parts).items():
            variables[collection][pretraining_parts.NAME] = values
        return variables

    def at_step(self, step: Array) -> Self:
        other = copy.copy(self)
        other._step = step
        return other

    def loss_fn(self, params: PyTree, batch: Batch, dropout_rng: Array | None) -> tuple[Array, metrics_lib.Metrics]:
        """As of the model without replaced-token detection, whose loss without an rng (an evaluation) it is."""
        if dropout_rng is None:
            return super().loss_fn(params, batch, None)
        if self._step is None:
            raise ValueError(
                "SpacTorModel.loss_fn needs the step, which says the stage: call model.at_step(step).loss_fn(…), or "
                "update by trainer.train_with_lr."
            )
        # One of two branches is computed: a step of the second stage costs what one without generator and head costs.
        is_first = self._step < self.steps
        tokens, parts = batch["encoder_input_tokens"], params[pretraining_parts.NAME]
        is_text = jnp.asarray(text_pieces.of_vocabulary(self.input_vocabulary, self.module.config.vocab_size))[tokens]
        rng = jax.random.fold_in(dropout_rng, _STREAM)
        with jax.named_scope("generator"):
            guessed = jax.lax.cond(
                is_first, self._guess, _no_guesses, parts, tokens, is_text, batch.get("encoder_segment_ids"), rng
            )
        outputs = self._logits_and_encoded(params, {**batch, "encoder_input_tokens": guessed.tokens}, dropout_rng)
        with jax.named_scope("loss"):
            loss, metrics = self._loss_and_metrics(outputs[0], batch, dropout_rng)
        with jax.named_scope("detector"):
            is_replaced = guessed.tokens != tokens
            found = jax.lax.cond(is_first, self._detect, _no_detection, parts, outputs[1], is_replaced, is_text)
        text = jnp.where(is_first, jnp.sum(is_text.astype(jnp.float32)), 0.0)
        replaced = jnp.sum(is_replaced.astype(jnp.float32))
        metrics["replaced_tokens"] = metrics_lib.ReplacedTokenSums(
            guessed.loss, guessed.num_masked, found.loss, found.right, replaced, text
        )
        means = self.generator_weight * guessed.loss / jnp.maximum(guessed.num_masked, 1.0)
        means += self.detection_weight * found.loss / jnp.maximum(text, 1.0)
        return loss + means * self._loss_of_a_mean(batch), metrics

    def _logits_and_encoded(self, params: PyTree, batch: Batch, dropout_rng: Array) -> tuple[Any, Array]:
        """What `_logits_of_loss` returns, and the outputs of the encoder `[batch, length, embed]` on the way to it."""
        is_encode = lambda module, method: isinstance(module, t5.Transformer) and method == "encode"  # noqa: E731
        logits, variables = self._compute_logits(
            params,
            batch,
            dropout_rng,
            mutable=["intermediates"],
            capture_intermediates=is_encode,
            linear_logits=True,
        )
        return logits, variables["intermediates"]["encode"][0]

    def _guess(self, parts: PyTree, tokens: Array, is_text: Array, segment_ids: Array | None, rng: Array) -> "Guesses":
        choose_rng, sample_rng, dropout_rng = jax.random.split(rng, 3)
        positions, is_chosen = choose_masked(is_text, self.masked_share, choose_rng)
        logits: Any = self.parts.apply(
            {"params": parts},
            tokens,
            at_positions(positions, is_chosen, 1, jnp.zeros_like(tokens)) > 0,
            positions,
            segment_ids,
            rngs={"dropout": dropout_rng},
            method="guess",
        )
        # It knows text only: a sentinel among the inputs would be a blank that is none.
        of_text = text_pieces.of_vocabulary(self.input_vocabulary, logits.shape[-1])
        logits = jnp.where(of_text, logits, -jnp.inf)
        originals = jnp.take_along_axis(tokens, positions, axis=1)
        loss = losses.token_losses(logits, jnp.where(is_chosen, originals, int(np.argmax(of_text)))).loss
        sampled = sample(logits, sample_rng)
        return Guesses(
            at_positions(positions, is_chosen, sampled, tokens),
            jnp.sum(jnp.where(is_chosen, loss, 0.0)),
            jnp.sum(is_chosen.astype(jnp.float32)),
        )

    def _detect(self, parts: PyTree, encoded: Array, is_replaced: Array, is_text: Array) -> "Detection":
        logits: Any = self.parts.apply({"params": parts}, encoded, method="detect")
        return detection(logits, is_replaced, is_text)


class Guesses(NamedTuple):
    """Inputs `[batch, length]` with guesses in place of masked tokens; sums of the generator: its loss, its tokens."""

    tokens: Array
    loss: Array
    num_masked: Array


def _no_guesses(parts: PyTree, tokens: Array, *_: Any) -> Guesses:
    del parts
    return Guesses(tokens, jnp.float32(0), jnp.float32(0))


def _no_detection(*_: Any) -> Detection:
    return Detection(jnp.float32(0), jnp.float32(0))


def choose_masked(is_text: Array, share: float, rng: Array) -> tuple[Array, Array]:
    """Positions of masked tokens, int32 `[batch, masked]`, and which of them count: a row of less text has fewer.

    Of the n tokens of text of a row `share * n` are chosen, rounded, and at least one if it has text.

    Args:
      is_text: bool `[batch, length]`; nothing else is chosen.
    """
    most = max(1, math.floor(share * is_text.shape[1] + 0.5))
    _, positions = jax.lax.top_k(jnp.where(is_text, jax.random.uniform(rng, is_text.shape), -1.0), most)
    in_row = jnp.sum(is_text, axis=1)
    wanted = jnp.minimum(in_row, jnp.maximum(1, jnp.floor(share * in_row + 0.5).astype(jnp.int32)))
    return positions, jnp.arange(most)[None] < wanted[:, None]


def _check_model(model: Any) -> None:
    what = "SpacTor (gin/runs/spactor.gin) detects replaced tokens with a T5's encoder while its decoder fills blanks"
    # Where a gin file binds its methods, gin makes a class of the same name of it.
    if not isinstance(model, EncoderDecoderModel) or type(model).__name__ != "EncoderDecoderModel":
        raise ValueError(
            f"{what}; MODEL is {type(model).__name__}, and it takes an EncoderDecoderModel. Use a model file such as "
            "gin/models/t5_1_1/base.gin, or leave gin/runs/spactor.gin out."
        )
    if not isinstance(model.module, t5.Transformer) or type(model.module.config) is not t5.T5Config:
        raise ValueError(
            f"{what}; EncoderDecoderModel.module is {type(model.module).__name__}, and it takes limba.network.t5's "
            "Transformer. Use a model file such as gin/models/t5_1_1/base.gin, or leave gin/runs/spactor.gin out."
        )
