"""The keys of config.json of T5Gemma and T5Gemma 2, and of encoder and decoder in it; see `config_keys`."""

from limba.convert.families.config_keys.keys import COMMON, carried, fixed, only, settings, table, without_effect

_RATES = settings("a rate of training: Limba has one, dropout_rate", attention_dropout=0.0, classifier_dropout_rate=0.0)
_OF_NEW = settings("of new weights: Limba draws them its own way", initializer_range=0.02)

KEYS = table(
    *COMMON,
    *carried(
        encoder="the configuration of the encoder",
        decoder="the configuration of the decoder",
        dropout_rate="dropout_rate",
        tie_word_embeddings="logits_via_embedding: the output is the decoder's embedding",
        decoder_start_token_id="what the decoder begins with; bos_token_id of the decoder where no file says it",
    ),
    *_RATES,
    *_OF_NEW,
    *without_effect("must be that of the vocabulary; that of the decoder where it is missing", "pad_token_id"),
    *without_effect("must be that of the vocabulary's end; that of the decoder where it is missing", "eos_token_id"),
    *without_effect("the decoder's is what it begins with", "bos_token_id"),
    *without_effect("encoder and decoder have their own", "vocab_size"),
    only("is_encoder_decoder", (True,), "without it there is no decoder", "Convert the whole T5Gemma."),
)

STACK_KEYS = table(
    *COMMON,
    *carried(
        vocab_size="vocab_size",
        hidden_size="emb_dim",
        intermediate_size="mlp_dim",
        num_hidden_layers="num_encoder_layers or num_decoder_layers",
        num_attention_heads="num_heads",
        num_key_value_heads="num_kv_heads",
        head_dim="head_dim",
        hidden_activation="mlp_activations, gated",
        rms_norm_eps="norm_epsilon",
        rope_theta="rotary_base",
        rope_parameters="rotary_base: rope_theta in it; of rope_type default",
        query_pre_attn_scalar="query_pre_attn_scalar",
        attn_logit_softcapping="attn_logit_softcapping",
        final_logit_softcapping="final_logit_softcapping: the decoder's",
        sliding_window="sliding_window",
        layer_types="global_attention_every: every n-th layer of both stacks is full_attention",
    ),
    *fixed("Gemma's products have no biases", attention_bias=False),
    *without_effect("the class writes it: one is a decoder", "is_decoder"),
    *without_effect("the width of the encoder", "cross_attention_hidden_size"),
    *without_effect("positions are rotary, and rows as long as the task says", "max_position_embeddings"),
    *without_effect("that of the whole model counts", "dropout_rate", "tie_word_embeddings", "is_encoder_decoder"),
    *without_effect("special ids: those of the decoder count", "pad_token_id", "eos_token_id", "bos_token_id"),
    *without_effect("a T5 has no such token", "sep_token_id", "cls_token_id", "decoder_start_token_id"),
    only("rope_scaling", (), "rotary positions of another kind", "Train such a model where it comes from."),
    only(
        "use_bidirectional_attention",
        (False,),
        "the decoder would see what follows",
        "Train such a model where it comes from.",
    ),
    *without_effect("of heads that this class does not have", "id2label", "label2id", "problem_type", "num_labels"),
    *_RATES,
    *_OF_NEW,
)

_OF_IMAGES = "of images, which are left out: Limba's T5s read texts"

KEYS_2 = KEYS | table(
    *fixed("the embedding of both stacks is the output", tie_word_embeddings=True),
    *without_effect(_OF_IMAGES, "eoi_token_index", "image_token_index", "boi_token_index"),
)

ENCODER_KEYS_2 = table(
    *COMMON,
    *carried(text_config="the configuration of the encoder"),
    *without_effect(_OF_IMAGES, "vision_config", "mm_tokens_per_image"),
    *without_effect(_OF_IMAGES, "eoi_token_index", "image_token_index", "boi_token_index"),
    *without_effect("that of the whole model counts", "dropout_rate", "tie_word_embeddings", "is_encoder_decoder"),
    *without_effect("special ids: those of the decoder count", "pad_token_id", "eos_token_id", "bos_token_id"),
    *_RATES,
    *_OF_NEW,
)

STACK_KEYS_2 = STACK_KEYS | table(
    *without_effect("layer_types say it", "_sliding_window_pattern"),
    *carried(
        rope_theta="rotary_base",
        rope_local_base_freq="local_rotary_base",
        rope_parameters="of full_attention rotary_base and, of rope_type linear, rotary_factor; of sliding_attention "
        "local_rotary_base",
        rope_scaling="rotary_factor, of rope_type linear",
        sliding_window_pattern="global_attention_every, without layer_types",
    ),
    only(
        "attn_logit_softcapping",
        (),
        "transformers' class leaves it out",
        "Remove it, if the model was trained in transformers.",
    ),
)
