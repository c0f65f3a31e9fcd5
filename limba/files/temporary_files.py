"""Files of Limba's own in temporary folders, whose paths tell a user nothing."""

import re
import tempfile

# As the folders of `tempfile` are called that are made here: a prefix and eight characters.
_FOLDER = re.compile(rf"{re.escape(tempfile.gettempdir())}/limba-[a-z]+-\w{{8}}/")


def named_alone(message: str) -> str:
    """A message with `config.json` in place of the path of a file in a temporary folder of Limba's."""
    return _FOLDER.sub("", message)
