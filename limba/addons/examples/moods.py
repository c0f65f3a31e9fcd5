"""Short stories with a mood, the data of gin/recipes/moods.gin, and their tasks.

    python -m limba.addons.examples.moods --out runs/moods/stories

A story tells a thing or two that happened to somebody. The mood of what counts in the end is the story's: after "but"
it is that of the second thing, beside "although" that of the main clause. So words alone do not tell. About 60 % of the
stories are glad, 25 % calm and 15 % sad. The mood is asked for as a blank: `… mood: <extra_id_0>` is answered by
`<extra_id_0> glad`.

Written are `corpus.jsonl`, stories without their moods, to pre-train on, and `train.csv` and `validation.csv` with the
columns `story` and `mood`. No story is in two files. `train-words.jsonl` and `validation-words.jsonl` have the words of
the latter, and which of them name a person or a setting (when, or where).
"""

import argparse
import csv
import os
import pathlib
import random
import re

from limba.files import json_text
from limba.tasks import pretraining, sources, supervised

_MOODS = {"glad": 60, "calm": 25, "sad": 15}
_NAMES = [
    "Ana", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gina", "Hugo", "Ina", "Jon", "Kira", "Leo", "Mara", "Nils", "Olga",
    "Paul", "Rosa", "Sam", "Tina", "Vlad",
]  # fmt: skip
_WHEN = [
    "On Monday", "On Friday", "In the morning", "In the evening", "Last winter", "Last summer", "At school", "At work",
    "On the way home", "After lunch", "Before the holidays", "In the city", "At the lake", "In the mountains",
    "From the diary:", "A note says:",
]  # fmt: skip
_EVENTS = {
    "glad": [
        "won the race", "found a lost ring", "got a present", "passed the exam", "met an old friend",
        "heard good news from home", "was praised by the teacher", "ate the best cake of all", "danced all night",
        "won a prize", "saw a rainbow over the sea", "was given a puppy", "made everybody laugh", "got the new job",
    ],
    "calm": [
        "read a long book", "walked along the river", "drank a cup of tea", "watched the clouds", "swept the floor",
        "wrote a letter", "sat under a tree", "knitted a scarf", "listened to the rain", "watered the plants",
        "counted the boats", "baked some bread", "sorted the stamps", "painted the fence",
    ],
    "sad": [
        "lost the keys", "missed the train", "failed the exam", "broke a leg", "heard bad news from home",
        "dropped the cake", "was left alone", "lost the race", "was robbed at the station", "had a quarrel",
        "was ill for days", "burnt the dinner", "tore the new coat", "lost the dog",
    ],
}  # fmt: skip


def make_story(rng: random.Random) -> tuple[str, str]:
    """A story and its mood."""
    mood = rng.choices(list(_MOODS), list(_MOODS.values()))[0]
    other = rng.choice([name for name in _MOODS if name != mood])
    name, when = rng.choice(_NAMES), rng.choice(_WHEN)
    last, first = rng.choice(_EVENTS[mood]), rng.choice(_EVENTS[other])
    kinds = [
        f"{when} {name} {last}.",
        f"{when} {name} {first}, but then {name} {last}.",
        f"Although {name} {first}, in the end {name} {last}.",
        f"{when} {name} {last}, although {name} {first} before.",
        f"{when} {name} {rng.choice(_EVENTS[mood])}, and then {name} {last}.",
    ]
    return rng.choice(kinds), mood


def label_words(story: str) -> tuple[list[str], list[str]]:
    """The words and stops of a story; their labels are B-PERSON, B-SETTING, I-SETTING and O."""
    setting = next((when for when in _WHEN if story.startswith(when)), "")
    words = re.findall(r"\w+|[^\w\s]", story)
    num_setting = len(re.findall(r"\w+|[^\w\s]", setting))
    labels = ["B-PERSON" if word in _NAMES else "O" for word in words]
    return words, [*["B-SETTING", *["I-SETTING"] * num_setting][:num_setting], *labels[num_setting:]]


def write_stories(
    out: str | os.PathLike[str], num_corpus: int = 40_000, num_train: int = 4000, num_validation: int = 1000
) -> dict[str, int]:
    """Writes the files, always the same; returns how many stories each has."""
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(0)
    stories: dict[str, str] = {}
    while len(stories) < num_corpus + num_train + num_validation:
        story, mood = make_story(rng)
        stories[story] = mood
    pairs = list(stories.items())
    labelled = {"validation": pairs[:num_validation], "train": pairs[num_validation : num_validation + num_train]}
    for split, rows in labelled.items():
        with (out / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("story", "mood"), *rows])
        lines = [json_text.dumps(dict(zip(("tokens", "tags"), label_words(story), strict=True))) for story, _ in rows]
        (out / f"{split}-words.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    unlabelled = pairs[num_validation + num_train :]
    lines = [json_text.dumps({"text": story}) + "\n" for story, _ in unlabelled]
    tenth = len(lines) // 10
    (out / "corpus-validation.jsonl").write_text("".join(lines[:tenth]), encoding="utf-8")
    (out / "corpus.jsonl").write_text("".join(lines[tenth:]), encoding="utf-8")
    return {split: len(rows) for split, rows in labelled.items()} | {"corpus": len(lines)}


DIRECTORY = pathlib.Path(os.environ.get("LIMBA_MOODS_DIR", "runs/moods"))
STORIES = DIRECTORY / "stories"
VOCABULARY_FILE = DIRECTORY / "vocab" / "spiece.model"
_HINT = "`bash launch/moods.sh` makes the stories; LIMBA_MOODS_DIR says where they are."

pretraining.register_pretraining_task(
    "moods_span_corruption",
    data_files=sources.HuggingFaceSource(
        {"train": STORIES / "corpus.jsonl", "validation": STORIES / "corpus-validation.jsonl"}, hint=_HINT
    ),
    vocabulary=VOCABULARY_FILE,
)
supervised.register_supervised_task(
    "moods",
    supervised.SupervisedDataset(
        "{story} mood: <extra_id_0>", "mood", labels={mood: f"<extra_id_0> {mood}" for mood in _MOODS}
    ),
    data_files={split: STORIES / f"{split}.csv" for split in ("train", "validation")},
    vocabulary=VOCABULARY_FILE,
)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m limba.addons.examples.moods", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", default=str(STORIES), help=f"the directory to write ({STORIES})")
    counts = write_stories(parser.parse_args(argv).out)
    print(", ".join(f"{name}: {count} stories" for name, count in counts.items()))


if __name__ == "__main__":
    main()
