"""An example for the page, in the language of the run's data: from the first rows of its training, which it keeps."""

import re

from limba.checkpoint_files import run_folder
from limba.files import storage
from limba.inference import blanks
from limba.tasks.pretraining import blank_sentences
from limba.training import first_rows

_MOST_CHARACTERS = 300
# Behind a row's text.
_END = re.compile(r"(?<!\s)\s*(</s>|\[SEP\])\s*$")


def find(checkpoint: str) -> str:
    """A text to ask the model of a checkpoint; "" where its run keeps no row that makes one.

    Of a model that fills blanks, a sentence of a row with one word left out, or the beginning of a row with its own
    blanks; of others, the inputs of a row.
    """
    path = storage.as_path(checkpoint)
    rows = first_rows.read(path.parent).get("rows")
    inputs = [row.get("inputs") for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []
    texts = [_END.sub("", text) for text in inputs if isinstance(text, str)]
    if not run_folder.has_blanks(path):
        return next((text for text in texts if len(text) <= _MOST_CHARACTERS), "")
    found = (blank_sentences.with_blank(sentence) for text in texts for sentence in _whole_sentences(text))
    example = next((blanks.shown(example[0]) for example in found if example), "")
    return example or next((_cut(text) for text in texts if blanks.BLANK in _cut(text)), "")


def _cut(text: str) -> str:
    """The beginning of a text, in whole words."""
    return text if len(text) <= _MOST_CHARACTERS else text[:_MOST_CHARACTERS].rpartition(" ")[0]


def _whole_sentences(text: str) -> list[str]:
    """The sentences between the blanks of a row; those at a blank or at an end of the row are cut."""
    return [x for piece in text.split(blanks.BLANK) for x in blank_sentences.sentences(piece)[1:-1]]
