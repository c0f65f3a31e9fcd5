"""T5 1.0 (arXiv:1910.10683): the embedding is the output too."""

from convert.families.t5_family import T5Family

FAMILY = T5Family(
    name="t5",
    title="T5",
    model_type="t5",
    model_class="T5ForConditionalGeneration",
    network={"logits_via_embedding": True, "relative_bias_per_layer": False},
    recognized_by="the embedding is the output too",
    defaults={"feed_forward_proj": "relu", "tie_word_embeddings": True},
    in_transformers=True,
)
