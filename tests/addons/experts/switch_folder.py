"""Folders of Switch Transformers as they lie on the hub, small and of random numbers, of sizes that a seed draws."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from convert.families import heads
from convert.tensors import safetensors_files
from limba.addons.experts.switch import SwitchConfig
from limba.addons.experts.switch_family import FAMILY
from limba.checkpoint_files.saved_tensors import from_array
from tests.convert import vocabularies


def settings(seed: int, **keys: Any) -> dict[str, Any]:
    """A config.json with the keys of the hub's; experts overflow, and sparse layers are not the same in both stacks."""
    rng = random.Random(seed)
    num_layers, num_decoder_layers = rng.choice(((4, 3), (3, 4), (4, 5)))
    return {
        "architectures": ["SwitchTransformersForConditionalGeneration"],
        "model_type": "switch_transformers",
        "is_encoder_decoder": True,
        "vocab_size": vocabularies.NUM_PIECES + 100 + 7,
        "d_model": rng.choice((16, 24)),
        "d_kv": rng.choice((4, 8)),
        "d_ff": rng.choice((20, 36)),
        "num_heads": rng.choice((2, 3)),
        "num_layers": num_layers,
        "num_decoder_layers": num_decoder_layers,
        "num_sparse_encoder_layers": 2,
        "num_sparse_decoder_layers": 1,
        "encoder_sparse_step": num_layers // 2,
        "decoder_sparse_step": num_decoder_layers,
        "num_experts": rng.choice((3, 4)),
        "expert_capacity": 9,
        "router_bias": False,
        "router_dtype": "float32",
        "router_ignore_padding_tokens": False,
        "router_jitter_noise": 0.01,
        "router_aux_loss_coef": 0.001,
        "router_z_loss_coef": 0.001,
        "router_type": "tokens_masked",
        "add_router_probs": False,
        "dense_act_fn": "relu",
        "feed_forward_proj": "relu",
        "is_gated_act": False,
        "dropout_rate": 0.1,
        "layer_norm_epsilon": 1e-06,
        "relative_attention_num_buckets": 32,
        "relative_attention_max_distance": 128,
        "n_positions": 512,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "tie_word_embeddings": True,
        **keys,
    }


def write(folder: Path, seed: int = 0, **keys: Any) -> Path:
    """A folder with the tokenizer of a T5; numbers are large enough for routers to choose every expert."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabularies.train(folder / "spiece.model")
    content = settings(seed, **keys)
    (folder / "config.json").write_text(json.dumps(content, indent=2))
    read = FAMILY.completed(FAMILY.with_t5_keys(folder / "config.json", content))
    config: SwitchConfig = FAMILY.make_network(
        read,
        vocab_size=content["vocab_size"],
        emb_dim=content["d_model"],
        num_heads=content["num_heads"],
        head_dim=content["d_kv"],
        mlp_dim=content["d_ff"],
        num_encoder_layers=content["num_layers"],
        num_decoder_layers=content["num_decoder_layers"],
        logits_via_embedding=content["tie_word_embeddings"],
    )
    rng, tensors = np.random.default_rng(seed), {}
    for row in FAMILY.table(config, heads.OF_T5):
        if not row.parts:
            tensors[row.name] = tensors["shared.weight"]
            continue
        scale = 0.2 if len(row.shape) == 1 else 0.7 if row.name == "shared.weight" else row.shape[-1] ** -0.5
        scale *= content["d_kv"] ** -0.5 if row.name.endswith(".q.weight") else 1.0
        found = rng.normal(float(row.name.endswith("norm.weight")), scale, row.shape)
        tensors[row.name] = from_array(found.astype(np.float32))
    safetensors_files.write(folder, tensors, lambda count: None, 2**30)
    return folder
