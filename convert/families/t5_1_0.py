"""T5 1.0 (arXiv:1910.10683): the embedding is the output too."""

from limba.convert.families.t5_family import T5Family

FAMILY = T5Family(
    name="t5",
    title="T5",
    model_type="t5",
    model_class="T5ForConditionalGeneration",
    network={"logits_via_embedding": True, "relative_bias_per_layer": False},
    recognized_by="the embedding is the output too",
    defaults={"vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_heads": 8}
    | {"feed_forward_proj": "relu", "tie_word_embeddings": True},
    in_transformers=True,
)
