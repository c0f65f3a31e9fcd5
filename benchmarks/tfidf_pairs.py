"""How well TF-IDF finds the second text of a pair by the first: what an embedding model is compared with.

    python -m benchmarks.tfidf_pairs runs/quickstart/pairs/train.csv runs/quickstart/pairs/validation.csv

The weights are log(1 + count) * log(documents / documents with the word), of lower-case words; the documents are all
texts of the first file.
"""

import collections
import csv
import math
import re
import sys
from pathlib import Path

import numpy as np

from tasks.metrics.text_pair_metrics import TextPair, retrieval


def _pairs(file: str) -> list[TextPair]:
    with Path(file).open(newline="", encoding="utf-8") as rows:
        return [TextPair(first, second) for first, second in list(csv.reader(rows))[1:]]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def main(train: str, validation: str) -> None:
    documents = [set(_words(text)) for pair in _pairs(train) for text in (pair.first, pair.second)]
    frequency = collections.Counter(word for document in documents for word in document)
    columns = {word: i for i, word in enumerate(frequency)}

    def vectors(texts: list[str]) -> np.ndarray:
        rows = np.zeros((len(texts), len(columns)), np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word, count in collections.Counter(_words(text)).items():
                if word in columns:
                    row[columns[word]] = math.log1p(count) * math.log(len(documents) / frequency[word])
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    pairs = _pairs(validation)
    sides = {side: vectors([getattr(pair, side) for pair in pairs]) for side in ("first", "second")}
    print(retrieval(pairs, ([], sides)))


if __name__ == "__main__":
    main(*sys.argv[1:])
