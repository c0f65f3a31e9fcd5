"""The keys of a NorT5's config.json; see `convert.families.config_keys`."""

from limba.convert.families.config_keys.keys import COMMON, carried, only, settings, table, without_effect

KEYS = table(
    *COMMON,
    *carried(
        vocab_size="vocab_size",
        hidden_size="emb_dim",
        intermediate_size="mlp_dim",
        num_hidden_layers="num_encoder_layers and num_decoder_layers",
        num_attention_heads="num_heads",
        position_bucket_size="num_buckets",
        layer_norm_eps="norm_epsilon",
        hidden_dropout_prob="dropout_rate",
        attention_probs_dropout_prob="attention_dropout_rate",
        bos_token_id="decoder_start_token_id, where generation_config.json does not say another",
        decoder_start_token_id="decoder_start_token_id, before bos_token_id",
        cls_token_id="cls_token_id",
        sep_token_id="sep_token_id",
    ),
    *without_effect("must be that of the vocabulary", "pad_token_id", "eos_token_id"),
    *without_effect("HPLT's code, which Limba does without; an export names it again", "auto_map"),
    *without_effect("distances from 511 on are one, in any row", "max_position_embeddings"),
    *without_effect("the output is a matrix of its own, whatever it says", "tie_word_embeddings"),
    *without_effect("says what a call in PyTorch returns", "output_all_encoded_layers"),
    *without_effect("of heads that this class does not have", "id2label", "label2id", "problem_type", "num_labels"),
    *settings("of new weights: HPLT's class draws them otherwise, and so does Limba", initializer_range=0.02),
    only("is_encoder_decoder", (True,), "without it there is no decoder", "Convert the whole NorT5."),
)
