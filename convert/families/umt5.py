"""umT5 (arXiv:2304.09151): every layer has its table of relative positions."""

from limba.convert.families import mt5
from limba.convert.families.t5_family import T5Family

FAMILY = T5Family(
    name="umt5",
    title="umT5",
    model_type="umt5",
    model_class="UMT5ForConditionalGeneration",
    network={"relative_bias_per_layer": True},
    in_bytes=None,
    defaults=mt5.SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": True},
    recognized_by="every layer has its table of relative positions",
    in_transformers=True,
    hides_output=True,
    scales_untied=True,
)
