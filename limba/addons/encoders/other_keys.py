"""Keys of a config.json that mean what others mean."""

from collections.abc import Mapping
from typing import Any

from limba.files.untrusted_files import shown


def by_usual_keys(
    content: Mapping[str, Any], other_keys: Mapping[str, str], defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """A config.json with the values of other keys under the usual ones too.

    Args:
      other_keys: by the usual ones.
      defaults: values of usual keys that transformers writes unasked; they do not contradict.

    Raises:
      ValueError: if two keys that mean the same have different values.
    """
    found = dict(content)
    for usual, other in other_keys.items():
        if content.get(other) is None:
            continue
        if content.get(usual) not in (None, defaults.get(usual), content[other]):
            raise ValueError(
                f"{usual} is {shown(content[usual])} and {other} {shown(content[other])}; they mean the same. Leave "
                "one out"
            )
        found[usual] = content[other]
    return found
