"""README.md of an adapter: what it is, and how PEFT loads it."""

from pathlib import Path

from limba.convert.exports.cards import markdown
from limba.convert.families import heads
from limba.convert.model_files.hf import hub_models
from limba.convert.model_files.model import Model
from limba.files import json_text

_AUTO_CLASSES = {
    heads.GENERATION: "AutoModelForSeq2SeqLM",
    heads.MASKED_LM: "AutoModelForMaskedLM",
    heads.PAIRS: "AutoModelForPreTraining",
    heads.SEQUENCE: "AutoModelForSequenceClassification",
    heads.TOKENS: "AutoModelForTokenClassification",
}


def write(folder: Path, name: str, base: Model, named: str | None, rank: int, alpha: float) -> None:
    """Writes README.md into the folder of an adapter.

    Args:
      folder, name: to write into, and the name of the folder to be.
      base, named: the model that it changes, and what the user calls it.
      rank, alpha: of the adapter.
    """
    # A folder of somebody's machine means nothing to others.
    known = named if named is not None and _is_of_hub(named) else None
    metadata = {"library_name": "peft", "tags": [base.family.name, "limba", "lora"]}
    if known is not None:
        metadata = {"base_model": known, **metadata}
    auto_class = _AUTO_CLASSES[base.head.kind]
    program = (
        f"from peft import PeftModel\nfrom transformers import {auto_class}\n\n"
        f"base = {auto_class}.from_pretrained({known or 'BASE'!r})\n"
        'model = PeftModel.from_pretrained(base, ".")  # the folder of this file, or the name of its repository'
    )
    where = "" if known else " `BASE` is the folder of that model."
    lines = [f"{key}: {json_text.dumps(value, ensure_ascii=False)}" for key, value in metadata.items()]
    parts = [
        "---\n" + "\n".join(lines) + "\n---",
        f"# {markdown.plain(name)}",
        f"LoRA factors of rank {rank} and alpha {alpha:g} for a {base.family.title} of "
        f"{base.num_parameters:,} parameters, trained at step {base.step:,} by Limba. Load them on the model that they "
        f"were trained beside, and no other.{where}",
        markdown.python_block(program),
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def _is_of_hub(base: str) -> bool:
    return hub_models.is_name(base) and not Path(base).exists()
