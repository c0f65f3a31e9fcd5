"""README.md of a folder of sentence-transformers."""

from collections.abc import Iterator
from pathlib import Path

from limba.convert.exports.cards import markdown, model_card
from limba.convert.families import heads
from limba.convert.model_files.model import Model
from limba.files import json_text

_TEXTS = ["A first text.", "A second one."]


def write(folder: Path, name: str, model: Model, pooling: str, has_unit_length: bool, max_length: int) -> None:
    """Writes README.md; `name` is that of the folder to be, the rest is as of `SentenceFolder`."""
    metadata = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["sentence-transformers", "feature-extraction", model.family.name, "limba"],
    }
    program = (
        "from sentence_transformers import SentenceTransformer\n\n"
        'model = SentenceTransformer(".")  # the folder of this file, or the name of its repository\n'
        f"print(model.encode({_TEXTS!r}).shape)"
    )
    pooled = {"mean": "the mean of", "max": "the largest numbers of", "first": "the first of"}[pooling]
    unit = ", divided by its length" if has_unit_length else ""
    parts = [
        "---\n" + "\n".join(f"{key}: {json_text.dumps(value)}" for key, value in metadata.items()) + "\n---",
        f"# {markdown.plain(name)}",
        markdown.python_block(program),
        f"A text becomes {model.config.emb_dim} numbers: {pooled} the vectors of its tokens{unit}. They are those of "
        f"the encoder of a {model.family.title}, step {model.step:,}, as `limba embed` gives them. Texts of more than "
        f"{max_length:,} tokens are cut.",
        *_training(model),
        "A pooler that transformers reports as new is not used.",
    ]
    (folder / "README.md").write_text("\n\n".join(parts) + "\n", "utf-8")


def _training(model: Model) -> Iterator[str]:
    """Whether it was trained to compare texts, and how well it does."""
    if model.head.kind != heads.VECTORS:
        yield (
            "Unless it was trained for that elsewhere, the encoder does not compare sentences well: train it on pairs "
            "of sentences before you rely on distances."
        )
        return
    yield (
        "It was trained with Limba on pairs of texts that belong together, with the other pairs of a batch as "
        "negatives: compare vectors by their cosine."
    )
    metrics = [line for line in model_card.run_record(model.path)[1] if line["step"] <= model.step]
    if rows := list(model_card.results_of(metrics, "accuracy among the pairs of a batch")):
        yield markdown.table(rows, ("data", "metric", "value", "step"))
