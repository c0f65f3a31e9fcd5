"""The keys of a BART's and an mBART's config.json; see `convert.families.config_keys`."""

from limba.convert.families.config_keys.keys import COMMON, Table, carried, only, settings, table, without_effect

_OTHER = "A network with other norms is of another family: train it where it comes from."


def keys(norms_before: bool) -> Table:
    """Of BART, or of mBART, whose norms stand before the blocks."""
    return table(
        *COMMON,
        *carried(
            vocab_size="vocab_size",
            d_model="emb_dim",
            encoder_layers="num_encoder_layers",
            decoder_layers="num_decoder_layers",
            encoder_attention_heads="num_heads",
            decoder_attention_heads="must be encoder_attention_heads",
            encoder_ffn_dim="mlp_dim",
            decoder_ffn_dim="must be encoder_ffn_dim",
            activation_function="mlp_activations",
            dropout="dropout_rate",
            attention_dropout="attention_dropout_rate",
            activation_dropout="activation_dropout_rate",
            max_position_embeddings="max_positions",
            scale_embedding="scale_embedding",
            decoder_start_token_id="what the decoder begins with; 2 where no file says it",
        ),
        *without_effect("must be that of the vocabulary", "pad_token_id", "eos_token_id"),
        *without_effect("the vocabulary has it", "bos_token_id"),
        *without_effect("encoder_layers says it", "num_hidden_layers"),
        *without_effect("of heads that this class does not have", "id2label", "label2id", "problem_type", "num_labels"),
        *without_effect(
            "of heads that this class does not have", "_num_labels", "classif_dropout", "classifier_dropout"
        ),
        *settings("of new weights: Limba draws them with 0.02", init_std=0.02),
        *settings("a rate of training that Limba does not have", encoder_layerdrop=0.0, decoder_layerdrop=0.0),
        *settings("a setting of `generate`: Limba's answers end with </s>", forced_eos_token_id=2),
        *settings(
            "a setting of `generate`: a model that was trained on `<s> text </s>` begins with <s> by itself",
            forced_bos_token_id=(),
            force_bos_token_to_be_generated=False,
        ),
        only("is_encoder_decoder", (True,), "without it there is no decoder", "Convert the whole model."),
        only("tie_word_embeddings", (True,), "its class ties the output whatever it says", "Remove the key."),
        only("normalize_before", (norms_before,), "it says where norms stand", _OTHER),
        only("add_final_layer_norm", (norms_before,), "it says whether a norm stands behind a stack", _OTHER),
        only("normalize_embedding", (True,), "it says whether embedded tokens are normalized", _OTHER),
        only("add_bias_logits", (False,), "a bias of logits would be trained", _OTHER),
        only("static_position_embeddings", (False,), "positions would be sines", _OTHER),
        only("extra_pos_embeddings", (2,), "the table of positions has two rows before the first position", _OTHER),
    )
