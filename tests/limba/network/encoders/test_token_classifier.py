"""Labels of words are learned from rows of words, and read from predictions one a word."""

import json

import numpy as np
import pytest

from limba import models
from limba.checkpoints import checkpointing
from limba.inference.answering import Answerer
from limba.network.encoders import classifier, encoder
from limba.optimizers import definitions
from tasks import supervised
from tasks.registry import TaskRegistry
from tasks.vocabularies import LabelVocabulary, TokenizerVocabulary
from tests.convert import vocabularies
from tests.limba import small
from tests.limba.network.encoders import short_training

LABELS = ["O", "B-PER", "I-PER"]
# Each letter is a piece, so that words have several.
_NAMES, _VERBS = ["ana", "bob"], ["sees", "likes"]
_PIECES = ["a", "b", "e", "i", "k", "l", "n", "o", "s", "##a", "##b", "##e", "##i", "##k", "##n", "##o", "##s"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers

    pieces = {piece: i for i, piece in enumerate([*vocabularies.SPECIAL_TOKENS, *_PIECES])}
    tokenizer = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    file = tmp_path_factory.mktemp("vocabulary") / "tokenizer.json"
    tokenizer.save(str(file))
    return TokenizerVocabulary(str(file))


@pytest.fixture
def task(tmp_path, vocabulary):
    """Somebody with one name or two sees somebody else."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 200), ("validation", 40)):
        rows = []
        for _ in range(count):
            first, second = (rng.choice(_NAMES, rng.integers(1, 3)).tolist() for _ in range(2))
            tags = [["B-PER", "I-PER"][: len(names)] for names in (first, second)]
            rows.append({"words": [*first, str(rng.choice(_VERBS)), *second], "ner": [*tags[0], "O", *tags[1]]})
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    yield supervised.register_token_task(
        "test_people",
        supervised.TokenDataset(LABELS, "words", "ner"),
        data_files={split: str(tmp_path / f"{split}.jsonl") for split in ("train", "validation")},
        vocabulary=vocabulary,
    )
    TaskRegistry.remove("test_people")


@pytest.mark.slow
def test_labels_of_words_are_learned(task, vocabulary, tmp_path):
    sizes = {"vocab_size": 128, "emb_dim": 32, "num_heads": 2, "head_dim": 16, "mlp_dim": 32, "num_layers": 1}
    config = encoder.EncoderConfig(**sizes, max_positions=32, norm_position="pre", dropout_rate=0.0)
    model = models.EncoderClassifier(
        classifier.TokenClassifier(config, LABELS),
        vocabulary,
        LabelVocabulary(LABELS),
        definitions.adamw(),
        loss_normalizing_factor="NUM_REAL_TARGET_TOKENS",
    )
    lengths = {"inputs": 24, "targets": 24}
    metrics = short_training.metrics_of_training(model, task.name, lengths, tmp_path / "run")
    (found,) = (x for x in metrics if x["dataset"] == "inference_eval/test_people")
    # B or I depends on the word before.
    assert found["eval/majority_accuracy"] < 60 and found["eval/entity_f1"] > 95 and found["eval/accuracy"] > 95
    assert min(found[f"eval/PER_{name}"] for name in ("precision", "recall", "f1")) > 95
    restore = checkpointing.RestoreCheckpointConfig(path=str(tmp_path / "run"), mode="latest")
    answerer = Answerer(model=model, restore_checkpoint_cfg=restore, partitioner=small.partitioner())
    (answer,) = answerer.answer(["ana bob sees bob"])
    assert answer.filled == "ana/B-PER bob/I-PER sees/O bob/B-PER"
