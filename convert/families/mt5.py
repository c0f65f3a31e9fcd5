"""mT5 (arXiv:2010.11934): T5 1.1 with another vocabulary. The tensors do not tell it, so it is named by `--family`."""

import dataclasses

from limba.convert.families import t5_1_1

# By default, as umT5's.
SIZES = {"vocab_size": 250112, "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_heads": 6}

FAMILY = dataclasses.replace(
    t5_1_1.FAMILY,
    name="mt5",
    title="mT5",
    model_type="mt5",
    model_class="MT5ForConditionalGeneration",
    defaults=SIZES | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
    hides_output=True,
)
