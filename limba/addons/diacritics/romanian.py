"""Romanian tasks, for Limba and for T5X alike: what `gin/recipes/ro_*.gin` and `gin/recipes/diacritics.gin` train on.

    RO_CORPUS        folder with `train-*` and `validation-*` files of documents in the column `text`; default corpus/ro
    RO_CORPUS_TYPE   the files' ending; default jsonl
    RO_VOCABULARY    SentencePiece model of 63,900 pieces, without sentinels; default vocab/ro.model
    MT5_VOCABULARY   mT5's own; default is Google's bucket

A task's vocabulary and the model's must be one: the recipes bind `VOCABULARY` to the functions of this module.
"""

import os
import pathlib

from limba.addons import diacritics
from limba.tasks import pretraining, sources, vocabularies

CORPUS = pathlib.Path(os.environ.get("RO_CORPUS", "corpus/ro"))
CORPUS_TYPE = os.environ.get("RO_CORPUS_TYPE", "jsonl")
RO_VOCABULARY = os.environ.get("RO_VOCABULARY", "vocab/ro.model")
MT5_VOCABULARY = os.environ.get("MT5_VOCABULARY", "gs://t5-data/vocabs/mc4.250000.100extra/sentencepiece.model")


def vocabulary() -> vocabularies.SentencePieceVocabulary:
    """Romanian pieces, with 100 sentinels behind the last."""
    return vocabularies.SentencePieceVocabulary(RO_VOCABULARY, extra_ids=100)


def mt5_vocabulary() -> vocabularies.SentencePieceVocabulary:
    """mT5's 250,000 pieces, whose file ends with 100 pieces for the sentinels already."""
    return vocabularies.SentencePieceVocabulary(MT5_VOCABULARY, extra_ids=0)


def _corpus() -> sources.HuggingFaceSource:
    return sources.HuggingFaceSource(
        {split: str(CORPUS / f"{split}-*.{CORPUS_TYPE}") for split in ("train", "validation")},
        hint="Set RO_CORPUS to the folder with your train-* and validation-* files, RO_CORPUS_TYPE to their ending.",
    )


pretraining.register_pretraining_task("ro_span_corruption", data_files=_corpus(), vocabulary=vocabulary())
pretraining.register_pretraining_task("ro_mt5_span_corruption", data_files=_corpus(), vocabulary=mt5_vocabulary())

# Text from the web is often written without: a twentieth of a document's words has to have marks.
for name, its_vocabulary in (("ro_diacritics", vocabulary()), ("ro_mt5_diacritics", mt5_vocabulary())):
    diacritics.register_diacritics_task(
        name, data_files=_corpus(), vocabulary=its_vocabulary, language="ro", min_marked_words=0.05
    )
