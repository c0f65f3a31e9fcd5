"""A corpus of one document a split, and its vocabulary, where the recipe of the quickstart looks for its own."""

from pathlib import Path

import sentencepiece

_TEXT = "Return the length of the list."


def write(folder: Path) -> None:
    """Writes them below a folder, from which the recipe is read then; the vocabulary's pieces are letters."""
    corpus, vocabulary = (folder / "runs/quickstart" / name for name in ("corpus", "vocab"))
    corpus.mkdir(parents=True)
    vocabulary.mkdir()
    for split in ("train", "validation"):
        (corpus / f"{split}-0.jsonl").write_text(f'{{"text": "{_TEXT}"}}\n')
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    with (vocabulary / "spiece.model").open("wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([_TEXT]), model_writer=file, model_type="char", minloglevel=2, vocab_size=18, **ids
        )
