"""The keys of an encoder's config.json; see `convert.families.config_keys.keys`."""

from limba.convert.families.config_keys.keys import COMMON, carried, fixed, only, settings, table, without_effect

_FROM_SCRATCH = (
    "No class of transformers has it. Such a network is trained from scratch, from the config.json alone; for weights "
    "remove the key if they are of a plain BERT."
)
_SCALED = "Train such a model where it comes from; for the one without remove the key."
_OTHER_DEBERTA = "Limba has the networks of DeBERTa-v3 (small, base, large) and mDeBERTa-v3 alone."

_ENCODER = (
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

_BERT = (
    *_ENCODER,
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
    *_BERT,
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
ROBERTA_PRELAYERNORM = table(*_BERT)
DISTILBERT = table(
    *_ENCODER,
    *carried(
        dim="emb_dim",
        n_layers="num_layers",
        n_heads="num_heads",
        hidden_dim="mlp_dim",
        activation="mlp_activations",
        dropout="dropout_rate",
        attention_dropout="attention_dropout_rate",
    ),
    *settings("a rate of training: a run's file says its own", seq_classif_dropout=0.2, qa_dropout=0.1),
    only("intermediate_size", (), "the class does not read it", "Write hidden_dim."),
    *settings("the weights have the table of positions, and Limba trains it", sinusoidal_pos_embds=False),
    *without_effect("the output is the embedding", "tie_weights_"),
)
MPNET = table(
    *_BERT,
    *carried(relative_attention_num_buckets="num_buckets, 32"),
    *without_effect("no class reads it: there are no segments", "type_vocab_size"),
    *without_effect("no class reads it: positions are learned, with distances", "position_embedding_type"),
)
ELECTRA = table(
    *_BERT,
    *carried(embedding_size="embedding_size"),
    *without_effect(
        "of a class for multiple choice, which Limba does not have",
        *("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "summary_proj_to_labels"),
        "summary_first_dropout",
    ),
    *without_effect("of the pre-training, and no class reads it", "generator_hidden_size"),
)
DEBERTA_V2 = table(
    *_BERT,
    *carried(position_buckets="num_buckets", max_relative_positions="max_distance; below 1 it is max_positions"),
    only("relative_attention", (True,), "DeBERTa without distances", _OTHER_DEBERTA),
    only("share_att_key", (True,), "further products for the distances", _OTHER_DEBERTA),
    only("norm_rel_ebd", ("layer_norm",), "distances without a norm", _OTHER_DEBERTA),
    only("position_biased_input", (False,), "learned positions beside the distances", _OTHER_DEBERTA),
    carried(pos_att_type="must be c2p and p2c")[0],
    only("conv_kernel_size", (0,), "a convolution beside the first layer (DeBERTa-v2 xlarge)", _OTHER_DEBERTA),
    *without_effect("of the convolution, which is not there", "conv_act", "conv_groups"),
    only("legacy", (True,), "the same head under other names", "Load the model, and save it with legacy=true."),
    only("z_steps", (0, 1), "the last layer several times", _OTHER_DEBERTA),
    *carried(pooler_hidden_act="activation of a classifier", pooler_hidden_size="must be hidden_size"),
    *settings("a rate of training: a run's file says its own", pooler_dropout=0, cls_dropout=None),
    *without_effect("no class reads it: attention is to distances", "position_embedding_type"),
)
ROFORMER = table(
    *_BERT,
    *carried(embedding_size="embedding_size", rotary_value="must be false"),
    *without_effect("no class reads it: positions are rotary", "position_embedding_type"),
)

# transformers has these classes itself. The files on the hub are older, and name code of their repositories.
_OWN_CLASS = settings("transformers has this class itself, and Limba takes that one", auto_map=())
_ROTARY = (
    *carried(rope_theta="rotary_base", rope_parameters="rotary_base", head_dim="must be hidden_size / heads"),
    only("rope_scaling", ({"rope_type": "default"},), "other rotary positions than Limba's", _SCALED),
    *without_effect("no class reads it: positions are rotary", "position_embedding_type"),
)
EUROBERT = table(
    *_ENCODER,
    *_ROTARY,
    *_OWN_CLASS,
    *carried(
        hidden_act="mlp_activations",
        attention_dropout="attention_dropout_rate",
        rms_norm_eps="norm_epsilon",
        attention_bias="attention_bias",
        mlp_bias="mlp_bias, logits_bias",
        num_key_value_heads="num_kv_heads",
        classifier_pooling="pooling of a classifier",
        tie_word_embeddings="logits_via_embedding",
    ),
    only("clf_pooling", ("late",), "transformers' class reads classifier_pooling", "Write classifier_pooling."),
    *settings("transformers' class has no such dropout", hidden_dropout=0.0),
    *without_effect("another way to compute the same", "pretraining_tp"),
    *without_effect("the tokenizer has it", "bos_token", "eos_token", "pad_token", "mask_token"),
)
_OTHER = "Train such a model where it comes from."
NOMIC_BERT = table(
    *_BERT,
    *_ROTARY,
    *_OWN_CLASS,
    *carried(
        n_embd="emb_dim",
        n_layer="num_layers",
        n_head="num_heads",
        n_inner="mlp_dim",
        n_positions="max_positions",
        layer_norm_epsilon="norm_epsilon",
        activation_function="mlp_activations",
        resid_pdrop="dropout_rate",
        attn_pdrop="attention_dropout_rate",
        rotary_emb_base="rotary_base",
    ),
    *fixed("another network, of Nomic's own program", rotary_emb_fraction=1.0, scale_attn_weights=True),
    *fixed(
        "another network, of Nomic's own program",
        **dict.fromkeys(
            (
                *("prenorm", "parallel_block", "parallel_block_tied_norm", "causal", "use_rms_norm", "qkv_proj_bias"),
                *("mlp_fc1_bias", "mlp_fc2_bias", "rotary_emb_interleaved", "scale_attn_by_inverse_layer_idx"),
            ),
            False,
        ),
    ),
    only("rotary_emb_scale_base", (), "another network, of Nomic's own program", _OTHER),
    *settings(
        "Nomic's own program turns rows longer than max_trained_positions by other angles",
        rotary_scaling_factor=(),
    ),
    *settings("a rate of training: a run's file says its own", embd_pdrop=0.0),
    *without_effect("the row count is vocab_size", "pad_vocab_size_multiple"),
    *without_effect("no class of transformers reads it", "max_trained_positions", "dense_seq_output"),
    *without_effect(
        "another way to compute the same",
        *("fused_bias_fc", "fused_dropout_add_ln", "last_layer_subset", "reorder_and_upcast_attn", "use_flash_attn"),
        *("use_xentropy", "mlp_checkpoint_lvl", "use_fused_mlp", "fused_mlp"),
    ),
    *without_effect(
        "of GPT-2's classes, and no class of these reads it",
        *("summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type"),
        "summary_use_proj",
    ),
)

MODERNBERT = table(
    *_ENCODER,
    *carried(
        hidden_activation="mlp_activations",
        embedding_dropout="dropout_rate",
        attention_dropout="attention_dropout_rate",
        norm_eps="norm_epsilon",
        norm_bias="norm",
        attention_bias="attention_bias",
        mlp_bias="mlp_bias",
        classifier_bias="head_bias, dense_bias of a classifier",
        classifier_activation="head_activation, activation of a classifier",
        classifier_pooling="pooling of a classifier",
        decoder_bias="logits_bias",
        global_rope_theta="rotary_base",
        local_rope_theta="local_rotary_base",
        rope_parameters="rotary_base and local_rotary_base",
        layer_types="global_attention_every",
        global_attn_every_n_layers="global_attention_every, before version 5",
        local_attention="local_attention_window",
    ),
    only("rope_theta", (), "one version of transformers takes it for global_rope_theta", "Write global_rope_theta."),
    only("rope_scaling", ({"rope_type": "default"},), "other rotary positions than Limba's", _SCALED),
    *settings("a rate of training: a run's file says its own", classifier_dropout=0.0, mlp_dropout=0.0),
    *without_effect("no class reads it: positions are rotary", "position_embedding_type"),
    *without_effect("no class reads it: norm_eps is read", "layer_norm_eps"),
    *without_effect(
        "another way to compute the same",
        *("deterministic_flash_attn", "sparse_prediction", "sparse_pred_ignore_index", "reference_compile"),
        "repad_logits_with_grad",
    ),
    *settings("of new weights, which Limba does not cut off", initializer_cutoff_factor=2.0),
)
