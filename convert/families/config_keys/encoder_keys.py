"""The keys of an encoder's config.json; see `convert.families.config_keys.keys`."""

from limba.convert.families.config_keys.keys import COMMON, carried, only, settings, table, without_effect

_FROM_SCRATCH = (
    "No class of transformers has it. Such a network is trained from scratch, from the config.json alone; for weights "
    "remove the key if they are of a plain BERT."
)

# Of all encoders, and of all that are like BERT; families add their own.
ENCODER = (
    *COMMON,
    only("is_encoder_decoder", (False,), "an encoder has no decoder", "Convert the encoder alone."),
    *carried(
        vocab_size="vocab_size",
        hidden_size="emb_dim",
        num_hidden_layers="num_layers",
        num_attention_heads="num_heads",
        intermediate_size="mlp_dim",
        max_position_embeddings="max_positions",
        initializer_range="initializer_range",
        pad_token_id="pad_id, which is 0: from-hf exchanges the ids",
        id2label="the labels of a classifier",
        problem_type="numbers, or labels of which one or any may be right",
    ),
    *without_effect("the output is the embedding; the tensors are compared with it", "tie_word_embeddings"),
    *without_effect("id2label has them", "label2id", "num_labels", "_num_labels"),
    *settings("a rate of training: a run's file says its own", classifier_dropout=()),
    *without_effect(
        "the tokenizer has it",
        *("bos_token_id", "eos_token_id", "eos_token_ids", "cls_token_id", "sep_token_id", "mask_token_id"),
        *("unk_token_id", "tokenizer_class"),
    ),
    *without_effect("an encoder has no decoder", "decoder_start_token_id"),
)

OF_BERT = (
    *ENCODER,
    *carried(
        hidden_act="mlp_activations",
        hidden_dropout_prob="dropout_rate",
        attention_probs_dropout_prob="attention_dropout_rate",
        layer_norm_eps="norm_epsilon",
        type_vocab_size="num_token_types",
        position_embedding_type="position_embedding_type",
    ),
    *without_effect(
        "Google's first BERTs have it, and no class reads it",
        *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
        *("pooler_size_per_head", "pooler_type"),
    ),
)
# Keys of t5-experiments, which a network has that is trained from scratch (`new_network`).
T5_EXPERIMENTS = (
    "pre_layer_norm",
    "last_layer_norm",
    "relative_attention_num_buckets",
    "relative_last_bucket_distance",
    "rotary_dim",
    "rotary_base",
    "sparse_config_cls",
    "sparse_attention",
)

BERT = table(
    *OF_BERT,
    *(
        only(key, (False,) if key.endswith("norm") else (), "another network, of t5-experiments", _FROM_SCRATCH)
        for key in T5_EXPERIMENTS
    ),
)
NEW_BERT = BERT | table(
    *carried(
        pre_layer_norm="norm_position",
        last_layer_norm="must be that of pre_layer_norm",
        relative_attention_num_buckets="num_buckets",
        relative_last_bucket_distance="max_distance",
        rotary_dim="rotary_dim",
        rotary_base="rotary_base",
        sparse_config_cls="sparse_attention",
        sparse_attention="sparse_attention",
    )
)
ROBERTA_PRELAYERNORM = table(*OF_BERT)
