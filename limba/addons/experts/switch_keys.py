"""The keys of a Switch Transformer's config.json; see `convert.families.config_keys`."""

from limba.convert.families.config_keys import t5_keys
from limba.convert.families.config_keys.keys import carried, only, table, without_effect

_BF16 = "Limba's routers compute in float32. Convert a copy with router_dtype float32, and compare what it answers."

KEYS = t5_keys.KEYS | table(
    *carried(
        dense_act_fn="mlp_activations",
        num_experts="num_experts",
        num_sparse_encoder_layers="encoder_sparse_step, of num_layers // this; with 0 the class has one in layer 1",
        num_sparse_decoder_layers="decoder_sparse_step",
        encoder_sparse_step="encoder_sparse_step, before num_sparse_encoder_layers",
        decoder_sparse_step="decoder_sparse_step, before num_sparse_decoder_layers",
        expert_capacity="expert_capacity",
        router_bias="router_bias",
        router_jitter_noise="jitter_noise",
        router_aux_loss_coef="router_aux_loss_coef",
        router_z_loss_coef="router_z_loss_coef",
    ),
    only("router_dtype", ("float32",), "the router computes in it", _BF16),
    *without_effect("the class reads dense_act_fn", "feed_forward_proj", "is_gated_act"),
    *without_effect("no version of the class looks at it: padding counts", "router_ignore_padding_tokens"),
    *without_effect("there is one kind of router", "router_type"),
    *without_effect("says what a call in PyTorch returns", "add_router_probs", "output_router_logits"),
)
