"""A training learns what neighbours do not tell: its model is better than the bigram of its texts."""

import json
import random

import pytest

from limba.reports import writers
from tests import line

# All of them in the texts that the vocabulary is made of.
TOPICS = ["list", "names", "file", "value", "order", "none", "found", "each"]
OTHERS = ["the", "of", "is", "a", "that", "holds", "in", "and"]
STEPS = 150


@pytest.fixture(scope="module")
def run(tmp_path_factory, forks):
    """A run on texts in which every other word is the topic of the text, and the words between are any."""
    directory = tmp_path_factory.mktemp("context")
    line.write_corpus(directory / "words")
    line.write_vocabulary(directory / "words", directory / "vocab" / "spiece.model")
    rng = random.Random(0)
    (directory / "corpus").mkdir()
    for split, documents in (("train", 400), ("validation", 40)):
        with (directory / "corpus" / f"{split}-0.jsonl").open("w") as file:
            for _ in range(documents):
                topic = rng.choice(TOPICS)
                words = [word for other in rng.choices(OTHERS, k=15) for word in (topic, other)]
                file.write(json.dumps({"text": " ".join(words)}) + "\n")
    more = ["--gin.BATCH_SIZE=16", "--gin.network.T5Config.emb_dim=32", "--gin.DROPOUT_RATE=0.0"]
    arguments = line.train_arguments(directory, directory / "model", STEPS, *more)
    result = line.forked(forks, directory, *arguments)
    assert result.returncode == 0, result.stderr
    return directory / "model", result.stdout


def test_it_is_better_than_the_bigram_of_its_texts(run):
    model_dir, said = run
    first, last = writers.read_metrics(model_dir, "training_eval/")
    bigram = last["left_bigram/nats_per_text_token"]
    renormalized = "nats_per_text_token_renormalized"
    # The run begins as the factored bigram of its texts, which is no better than the counts themselves.
    assert first[renormalized] > bigram > last[renormalized] + 0.3
    assert last["text_accuracy_renormalized"] > last["left_bigram/text_accuracy"] + 0.2
    # Knowing one word before does not help with the topic; two do.
    assert last["left_trigram/nats_per_text_token"] < bigram - 0.5
    assert "before the first step" in said and "bigram of the token before" in said
