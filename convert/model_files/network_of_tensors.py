"""The network of a checkpoint that does not describe it: what the shapes of its tensors and its gin file say."""

from collections.abc import Mapping, Sequence
from typing import Any

from limba.checkpoint_files import run_folder
from limba.checkpoint_files.saved_tensors import SavedTensor
from limba.files.storage import AnyPath
from limba.network.t5 import T5Config


def read(
    path: AnyPath, tensors: Mapping[str, SavedTensor], bound: Mapping[str, Any], mlp_activations: Sequence[str] | None
) -> tuple[T5Config, dict[str, str]]:
    """The network that the shapes tell; the rest is bound by gin, the user's, or the usual, which is assumed.

    Args:
      path, tensors: of the checkpoint, and its parameters by Limba's names.
      bound: fields of T5Config in its gin file.
      mlp_activations: what the user says of them.

    Returns:
      The network, and what is assumed, with its value.

    Raises:
      ValueError: if it is no T5 with encoder and decoder, or gin says another network.
    """
    shapes = {name: t.shape for name, t in tensors.items()}
    biases = [shape for name, shape in shapes.items() if name.endswith("relpos_bias/rel_embedding")]
    per_layer = "encoder/relpos_bias/rel_embedding" not in shapes
    tied = "decoder/logits_dense/kernel" not in shapes
    gated = "encoder/layers_0/mlp/wi_0/kernel" in shapes
    try:
        query, wo = shapes["encoder/layers_0/attention/query/kernel"], shapes["encoder/layers_0/mlp/wo/kernel"]
    except KeyError as error:
        raise ValueError(f"{path} is not of a T5 with encoder and decoder: it has no tensor {error}.") from error
    vocab_size, emb_dim = shapes["token_embedder/embedding"]
    num_heads = biases[0][0]
    found: dict[str, Any] = {
        "vocab_size": vocab_size,
        "emb_dim": emb_dim,
        "num_heads": num_heads,
        "head_dim": query[1] // num_heads,
        "mlp_dim": wo[0],
        "num_encoder_layers": _num_layers(shapes, "encoder"),
        "num_decoder_layers": _num_layers(shapes, "decoder"),
        "logits_via_embedding": tied,
    }
    for field, value in found.items():
        if bound.get(field, value) != value:
            raise ValueError(
                f"{run_folder.find_gin(path)} has T5Config.{field} = {bound[field]!r}, and the tensors of "
                f"{path.name} are of a network with {value!r}."
            )
    usual = ("gelu", "linear") if gated else ("relu",)
    said = bound.get("mlp_activations") or mlp_activations
    activations = tuple(said or usual)
    if len(activations) != 1 + gated:
        raise ValueError(f"mlp_activations {list(activations)}: {path} has {1 + gated} a layer.")
    rate = bound.get("dropout_rate", 0.0)
    assumed = {} if said else {"mlp_activations": " ".join(activations)}
    if "dropout_rate" not in bound:
        assumed["dropout_rate"] = str(rate)
    config = T5Config(**found, mlp_activations=activations, dropout_rate=rate, relative_bias_per_layer=per_layer)
    return config, assumed


def _num_layers(shapes: Mapping[str, tuple[int, ...]], stack: str) -> int:
    return len({name.split("/")[1] for name in shapes if name.startswith(f"{stack}/layers_")})
