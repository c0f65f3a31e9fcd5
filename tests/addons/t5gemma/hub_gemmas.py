"""T5Gemma's and T5Gemma 2's configurations at small widths, and the tokenizer that their folders on the hub have."""

import json
import random
from pathlib import Path
from typing import Any

from tests.convert.encoders.families import test_mmbert

# By name: the class of transformers, and whether version 5 alone has it.
CLASSES = {
    "t5gemma": ("T5GemmaForConditionalGeneration", False),
    "t5gemma2": ("T5Gemma2ForConditionalGeneration", True),
}
_VISION = {"model_type": "siglip_vision_model", "hidden_size": 4, "intermediate_size": 6, "num_attention_heads": 2}
_VISION |= {"num_hidden_layers": 1, "num_channels": 1, "image_size": 4, "patch_size": 2, "vision_use_head": False}
# Two of its special tokens, which texts do not have.
_OF_IMAGES = {"boi_token_index": 5, "eoi_token_index": 4, "image_token_index": 5}


def settings(name: str, seed: int) -> dict[str, Any]:
    """The configuration of a model, of sizes that the seed draws; windows are shorter than a text of 12 tokens."""
    rng = random.Random(seed)
    num_heads, kv_heads = rng.choice(((2, 1), (4, 2), (3, 3)))
    stack: dict[str, Any] = {
        "vocab_size": rng.choice((272, 280)),
        "hidden_size": num_heads * rng.choice((6, 8)),
        "num_attention_heads": num_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": rng.choice((4, 10)),
        "intermediate_size": rng.choice((20, 36)),
        "query_pre_attn_scalar": rng.choice((5, 9)),
        "sliding_window": rng.choice((4, 5)),
        "final_logit_softcapping": 6.0,
        "rms_norm_eps": 1e-5,
    }
    depths = [{"num_hidden_layers": rng.choice((2, 3))} for _ in range(2)]
    if name == "t5gemma":
        stack |= {"attn_logit_softcapping": 4.0, "rope_theta": 300.0}
        encoder, decoder = (stack | depth for depth in depths)
        return {"encoder": encoder, "decoder": decoder, "vocab_size": stack["vocab_size"]}
    of_global = {"rope_type": "linear", "factor": 4.0, "rope_theta": 900.0}
    of_local = {"rope_type": "default", "rope_theta": 50.0}
    stack["rope_parameters"] = {"full_attention": of_global, "sliding_attention": of_local}
    kinds = ("sliding_attention", "full_attention", "sliding_attention")
    text, decoder = (stack | depth | {"layer_types": kinds[: depth["num_hidden_layers"]]} for depth in depths)
    encoder = {"text_config": text, "vision_config": _VISION, "mm_tokens_per_image": 4, **_OF_IMAGES}
    return {"encoder": encoder, "decoder": decoder, "image_token_index": _OF_IMAGES["image_token_index"]}


def write_tokenizer(folder: Path) -> None:
    """`<bos>` before a text, nothing behind it, and bytes for what has no piece."""
    test_mmbert.write_tokenizer(folder)
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text())
    bos, text, _ = content["post_processor"]["single"]
    content["post_processor"] |= {"single": [bos, text], "pair": [bos, text, bos]}
    file.write_text(json.dumps(content))
    of_tokenizer = {"tokenizer_class": "GemmaTokenizer", "add_bos_token": True, "add_eos_token": False}
    of_tokenizer |= {"eos_token": "<eos>", "pad_token": "<pad>", "use_default_system_prompt": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(of_tokenizer))
