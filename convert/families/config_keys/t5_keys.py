"""The keys of a T5's config.json and generation_config.json; see `config_keys`."""

from limba.convert.families.config_keys.keys import (
    COMMON,
    GENERATION,
    carried,
    fixed,
    only,
    settings,
    table,
    without_effect,
)

_MEMORY = "Train it in t5-experiments; for a T5 without them remove the key."
_CDQ = (
    "If a Flax class of yours, named in encoder_self_attention_layer, has them (docs/networks.md), give "
    "--ignore_config_keys num_cdq_heads; for a T5 without them remove the key."
)

# A T5's special ids, in both files.
_SPECIAL_IDS = (
    *without_effect("must be that of the vocabulary: Limba's own is 0, and the two are exchanged", "pad_token_id"),
    *without_effect("must be that of the vocabulary's </s>", "eos_token_id"),
    *carried(decoder_start_token_id="what the decoder begins with; 0 where no file says it"),
)

KEYS = table(
    *COMMON,
    *_SPECIAL_IDS,
    *carried(
        vocab_size="vocab_size",
        d_model="emb_dim",
        d_kv="head_dim",
        d_ff="mlp_dim",
        num_heads="num_heads",
        num_layers="num_encoder_layers",
        num_decoder_layers="num_decoder_layers; num_layers where it is missing",
        feed_forward_proj="mlp_activations",
        dense_act_fn="must be the activation of feed_forward_proj",
        is_gated_act="must be what feed_forward_proj says",
        dropout_rate="dropout_rate",
        tie_word_embeddings="logits_via_embedding",
        scale_decoder_outputs="logits_via_embedding, before tie_word_embeddings",
        hidden_size="another name of d_model",
        head_dim="another name of d_kv",
        num_attention_heads="another name of num_heads",
        num_hidden_layers="another name of num_layers",
        transformers_version="version 5 writes tie_word_embeddings: true into every mT5 and umT5",
        tokenizer_class="ByT5Tokenizer is a vocabulary of bytes",
        encoder_self_attention_layer="a Flax class of your own (docs/networks.md)",
        decoder_self_attention_layer="a Flax class of your own",
        decoder_cross_attention_layer="a Flax class of your own",
        id2label="the labels of a classifier of tokens",
    ),
    *fixed("Limba's T5 has 32", relative_attention_num_buckets=32),
    *fixed("Limba's T5 has 128", relative_attention_max_distance=128),
    *fixed("Limba's T5 has 1e-06", layer_norm_epsilon=1e-6),
    only("is_encoder_decoder", (True,), "without it there is no decoder", "Convert the whole T5."),
    only("num_memory_tokens", (0,), "t5-experiments' learned vectors before the inputs; Limba's T5 has none", _MEMORY),
    only("num_cdq_heads", (0,), "heads of t5-experiments' T5CDQAttention; Limba's T5 has none", _CDQ),
    *settings("of new weights: Limba draws them as T5X does", initializer_factor=1.0),
    *settings("positions are relative, and rows as long as the task says", n_positions=512),
    *without_effect("positions are relative", "n_ctx", "max_position_embeddings", "max_sequence_length"),
    *without_effect("id2label has them", "label2id", "num_labels", "_num_labels"),
    *settings("a rate of training: a classifier of Limba's has one rate, dropout_rate", classifier_dropout=0.0),
    *without_effect("of heads that this class does not have", "problem_type"),
    *without_effect("a T5 has no such token", "bos_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
    *without_effect("the vocabulary has it", "unk_token_id"),
    *without_effect("umT5's files have it, and no class reads it", "scalable_attention"),
)

GENERATION_KEYS = table(
    *GENERATION,
    *_SPECIAL_IDS,
    *without_effect("a T5 has no such token", "bos_token_id"),
    *without_effect("says where the file comes from", "transformers_version", "_from_model_config", "_commit_hash"),
    *without_effect(
        "says what a call in PyTorch returns",
        *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
        "return_legacy_cache",
    ),
    *without_effect(
        "another way to compute the same",
        *("use_cache", "cache_implementation", "cache_config", "max_cache_len", "prefill_chunk_size", "low_memory"),
        *("disable_compile", "compile_config", "continuous_batching_config", "use_mtp", "speculation_type"),
        *("is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold"),
        *("assistant_early_exit", "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight"),
        *("prompt_lookup_num_tokens", "max_matching_ngram_size", "generation_kwargs"),
    ),
)
