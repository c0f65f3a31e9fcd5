"""FLOPs of an encoder-decoder, counted from its sizes. An encoder has no decoder layers: its targets have logits."""

from collections.abc import Mapping
from typing import Any


def forward_flops(sizes: Mapping[str, Any], inputs: int, targets: int) -> float:
    """FLOPs of the matrix products of one row's forward pass; a multiply and an add are two.

    With e = emb_dim, a = num_heads * head_dim, m = mlp_dim, g = number of mlp_activations, V = vocab_size, and for I
    inputs and T targets:

        encoder layer   2 I (2 e a + 2 e b + (g + 1) e m)    + 4 I K a
        decoder layer   2 T (4 e a + 2 e b + (g + 1) e m) + 4 I e b  + 4 T^2 a + 4 T I a
        logits          2 T e V

    K are the keys that a query is multiplied by: all I, or those of `seen_keys`. b is num_kv_heads * head_dim
    where there are fewer heads of keys and values, else a. 4 e a + 2 e b are the projections of self-attention and the
    query and output of cross-attention, whose keys and values (4 I e b) are of the inputs. Merged attention has a query
    and an output for both, which is 2 e a less.
    Causal attention counts in full. Looking up an embedding is not a product.

    Args:
      sizes: fields of `limba.network.t5.T5Config`; `seen_keys` is K of an encoder that does not see all.
      inputs, targets: tokens of a row, padding included.
    """
    emb = sizes["emb_dim"]
    joined_kv = sizes["num_heads"] * sizes["head_dim"]
    projection = emb * joined_kv
    mlp = (len(sizes["mlp_activations"]) + 1) * emb * sizes["mlp_dim"]
    gemma = sizes.get("gemma_layers") or {}
    kv_heads = gemma.get("num_kv_heads") or sizes.get("num_kv_heads") or sizes["num_heads"]
    of_keys = emb * kv_heads * sizes["head_dim"]
    encoder = 2 * inputs * (2 * projection + 2 * of_keys + mlp) + 4 * inputs * seen_keys(sizes, inputs) * joined_kv
    of_queries = 2 if gemma.get("merged_attention") else 4
    decoder = 2 * targets * (of_queries * projection + 2 * of_keys + mlp) + 4 * inputs * of_keys
    decoder += 4 * targets * (targets + inputs) * joined_kv
    logits = 2 * targets * emb * sizes["vocab_size"]
    return float(sizes["num_encoder_layers"] * encoder + sizes["num_decoder_layers"] * decoder + logits)


def seen_keys(sizes: Mapping[str, Any], inputs: int) -> float:
    """Keys that a query of the encoder is multiplied by."""
    return float(sizes.get("seen_keys", inputs))


def recomputed_flops(sizes: Mapping[str, Any], inputs: int, targets: int, remat_policy: str | None) -> float:
    """FLOPs of one row that `T5Config.remat_policy` computes a second time for the backward pass.

    "full" computes every layer again. "minimal" keeps products with parameters, and computes the two of attention
    again, which multiply activations. Logits are outside of the layers.
    """
    match remat_policy:
        case None | "none":
            return 0.0
        case "minimal":
            joined_kv = sizes["num_heads"] * sizes["head_dim"]
            encoder = 4 * inputs * seen_keys(sizes, inputs) * joined_kv
            decoder = 4 * targets * (targets + inputs) * joined_kv
            return float(sizes["num_encoder_layers"] * encoder + sizes["num_decoder_layers"] * decoder)
        case "full":
            return forward_flops(sizes, inputs, targets) - 2 * targets * sizes["emb_dim"] * sizes["vocab_size"]
    raise ValueError(f"No FLOPs are known for the remat policy {remat_policy!r}.")
