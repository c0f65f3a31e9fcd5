"""What a folder of sentence-transformers does beside its network, in the words of `limba embed`."""

from collections.abc import Iterator
from pathlib import Path

from limba.convert.model_files.hf.hf_tokenizer import read_json
from limba.files.untrusted_files import shown

_POOLINGS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max"}


def notes(folder: Path, network: str, others: list[str]) -> Iterator[str]:
    """Sentences about how `limba embed` gives the folder's vectors: with what flags, or that it does not."""
    flags, missing = [], []
    for other in others:
        content = read_json(folder / other / "config.json")
        poolings = [key.removeprefix("pooling_mode_") for key, x in content.items() if "pooling_mode_" in key and x]
        if other.endswith("_Normalize"):
            flags.append("--normalize")
        elif len(poolings) == 1 and poolings[0] in _POOLINGS:
            flags.append(f"--pooling {_POOLINGS[poolings[0]]}")
        else:
            missing.append(other)
    settings = read_json(folder / network / "sentence_bert_config.json")
    if (length := settings.get("max_seq_length")) is not None:
        flags.append(f"--gin.embedding.Embedder.max_inputs_length={length}")
    if missing:
        yield f"`limba embed` does not have {', '.join(missing)}, so its vectors are others than the folder's."
    elif flags:
        yield f"The folder's vectors are those of `limba embed` with {' '.join(flags)}."
    if settings.get("do_lower_case"):
        yield "The folder reads texts in small letters (do_lower_case of sentence_bert_config.json): write them so."
    prompts = read_json(folder / "config_sentence_transformers.json")
    if prompt := (prompts.get("prompts") or {}).get(prompts.get("default_prompt_name")):
        yield f"The folder puts {shown(prompt)} before each text (config_sentence_transformers.json): write it there."
