"""A corpus of one document a split where the recipe of the quickstart looks for its own."""

from pathlib import Path


def write(folder: Path) -> None:
    """Writes it below a folder, from which the recipe is read then."""
    corpus = folder / "runs/quickstart/corpus"
    corpus.mkdir(parents=True)
    for split in ("train", "validation"):
        (corpus / f"{split}-0.jsonl").write_text('{"text": "Return the length of the list."}\n')
