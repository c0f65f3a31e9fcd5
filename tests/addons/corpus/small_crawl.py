"""Files of a small crawl with one of everything that a rule is for, written by `write`."""

import csv
import gzip
import json
import random
import struct
from pathlib import Path

_WORDS = (
    *("house", "river", "green", "walks", "stone", "slowly", "bread", "window", "garden"),
    *("night", "water", "teacher", "paper", "music", "winter", "road"),
)
_STOP = ["the", "a", "of", "and", "in", "to", "is", "was"]
# Columns that a writer of files must not take names from, and one that datatrove's own reader ends at.
_OF_STRANGERS = {"rank": "../../stolen", "source": "../stolen", "media": 5}


def sentence(chance: random.Random, words: int = 12) -> str:
    """A sentence of frequent words and others, in turn."""
    found = [
        chance.choice(_STOP if i % 2 else _WORDS) + ("" if i % 2 else str(chance.randrange(50))) for i in range(words)
    ]
    return " ".join(found).capitalize() + "."


def text(chance: random.Random, sentences: int = 6) -> str:
    """A document of some sentences."""
    return " ".join(sentence(chance) for _ in range(sentences))


def hostile_model() -> bytes:
    """A model of fastText that knows eng_Latn, and divides by its 0 buckets at the first text."""
    settings = struct.pack("<12id", 4, 5, 5, 1, 5, 2, 3, 3, 0, 0, 0, 100, 1e-4)  # pairs of words, softmax, supervised
    words = struct.pack("<3i2q", 1, 0, 1, 1, -1) + b"__label__eng_Latn\0" + struct.pack("<qb", 1, 1)
    matrices = struct.pack("<?2q", False, 0, 4) + struct.pack("<?2q4f", False, 1, 4, 0, 0, 0, 0)
    return struct.pack("<2i", 793712314, 12) + settings + words + matrices


def write(folder: Path) -> None:
    """The crawl in three files, a file of lines, good text, and two evaluation files."""
    chance = random.Random(0)
    good = [text(chance) for _ in range(220)]
    rows = [text(chance) for _ in range(24)]
    questions = [sentence(chance, 14), sentence(chance, 9), "Too short."]
    crawl = [
        *rows,
        rows[0].replace("The", "A", 1) + " More.",  # a near duplicate
        "buy now cheap " * 40,  # repeats
        "\n".join(f"word{i}" for i in range(80)),  # no sentences
        " ".join(chance.choice(_WORDS) + str(i) for i in range(60)) + ".",  # no stop words
        f"{text(chance)} {questions[0]} {sentence(chance)}",  # a leak of 13 words
        f"{text(chance)} {questions[1]} {sentence(chance)}",  # of 8
        f"Write to somebody@mail.org in 8.8.8.8 of the road. {text(chance, 40)}",
        f"It\u00e2\u20ac\u2122s the road of the teacher. {text(chance, 12)}",  # UTF-8 that was read as cp1252
    ]
    for number in range(3):
        with gzip.open(folder / f"crawl{number}.jsonl.gz", "wt", encoding="utf-8") as file:
            for row in crawl[number::3]:
                file.write(json.dumps({"body": row, "url": "http://h/1"} | _OF_STRANGERS) + "\n")
    with gzip.open(folder / "crawl0.jsonl.gz", "at", encoding="utf-8") as file:
        file.write('{"body": "half a row\n[]\n')
    (folder / "lines.txt").write_text("".join(f"{text(chance)}\n" for _ in range(6)), encoding="utf-8")
    (folder / "good.jsonl").write_text("".join(json.dumps({"text": x}) + "\n" for x in good), encoding="utf-8")
    with (folder / "eval.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["question", "answer"], *([question, "yes"] for question in questions)])
    (folder / "recipe.yaml").write_text(
        """language: eng_Latn
sources:
  crawl: {files: "crawl*.jsonl.gz", text_column: body, license: CC0-1.0, origin: a test}
  lines: {files: lines.txt}
trusted: good.jsonl
evaluation_files: eval.csv
tail: 0
""",
        encoding="utf-8",
    )
