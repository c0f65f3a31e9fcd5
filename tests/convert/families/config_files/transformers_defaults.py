"""What transformers' classes take for keys that a config.json leaves out, or says to be null, recorded by version.

    python -m tests.convert.families.config_files.transformers_defaults     # writes transformers_defaults.json

It asks the transformers of this environment and, in a process, that of LIMBA_HF5_PYTHON. `defaults` are the keys of the
configuration by default. `null` says what a small network computes whose config.json has null for a key, where the
class takes it at all: "default" if it is the same as without the key, else "other".
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")
T5S = ("t5", "mt5", "umt5")
ENCODERS = (
    *("bert", "roberta", "xlm-roberta", "camembert", "roberta-prelayernorm", "mpnet", "roformer", "modernbert"),
    *("distilbert", "eurobert", "nomic_bert"),
)
SMALL_T5 = {"vocab_size": 40, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 2, "num_heads": 2}
SMALL_ENCODER = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "pad_token_id": 1,
}
# Keys that one version's class has, and the other's may read too.
_FURTHER = {
    **dict.fromkeys(T5S, ("scale_decoder_outputs",)),
    **dict.fromkeys(ENCODERS[:5], ("position_embedding_type",)),
    "modernbert": ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
}


def small(model_type: str) -> dict[str, Any]:
    """The config.json of a small network."""
    sizes = SMALL_T5 if model_type in T5S else SMALL_ENCODER
    if model_type == "distilbert":
        own = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
        own |= {"intermediate_size": "hidden_dim"}
        sizes = {own.get(key, key): size for key, size in sizes.items()}
    return {"model_type": model_type, **sizes}


def of_this_environment() -> dict[str, Any]:
    """`defaults` and `null` by type of model, by the transformers that is installed."""
    from transformers import CONFIG_MAPPING, PretrainedConfig

    found = {}
    for model_type in (x for x in (*T5S, *ENCODERS) if x in CONFIG_MAPPING):
        default = CONFIG_MAPPING[model_type]().to_dict()
        of_all = PretrainedConfig().to_dict()
        own = {key: x for key, x in default.items() if key not in of_all or x != of_all[key]}
        own = {key: x for key, x in own.items() if key not in ("model_type", "transformers_version")}
        expected = _outputs(small(model_type))
        null = {}
        for key in dict.fromkeys((*own, "tie_word_embeddings", *_FURTHER.get(model_type, ()))):
            try:
                outputs = _outputs(small(model_type) | {key: None})
            except Exception:  # whatever a class raises for null
                continue
            null[key] = "default" if outputs.shape == expected.shape and (outputs == expected).all() else "other"
        found[model_type] = {"defaults": own, "null": null}
    return found


def _outputs(content: dict[str, Any]) -> Any:
    """The logits of a network with fixed parameters."""
    import torch
    from transformers import CONFIG_MAPPING, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

    torch.manual_seed(0)
    is_t5 = content["model_type"] in T5S
    config = CONFIG_MAPPING[content["model_type"]].from_dict(content)
    class_ = AutoModelForSeq2SeqLM if is_t5 else AutoModelForMaskedLM
    network = class_.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, 39, (2, 300), generator=generator)  # longer than a window of ModernBERT
    with torch.no_grad():
        for _, parameter in sorted(network.named_parameters()):
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
        of_decoder = {"decoder_input_ids": ids[:, :5]} if is_t5 else {}
        return network(input_ids=ids, attention_mask=torch.ones_like(ids), **of_decoder).logits


def main() -> None:
    if sys.argv[1:] == ["print"]:
        print(json.dumps(of_this_environment()))
        return
    name = f"tests.convert.families.config_files.{FILE.stem}"
    pythons = {"4": sys.executable, "5": os.environ["LIMBA_HF5_PYTHON"]}
    by_version = {
        version: json.loads(subprocess.check_output([python, "-m", name, "print"]).splitlines()[-1])
        for version, python in pythons.items()
    }
    FILE.write_text(json.dumps(by_version, indent=1, sort_keys=True) + "\n", "utf-8")


if __name__ == "__main__":
    main()
