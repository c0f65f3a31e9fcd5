"""Words of a command line, quoted for a shell."""

import shlex


def quoted(word: str) -> str:
    """A word for a shell, as a person would quote it: in double quotes where it has single ones."""
    plain = "'" in word and not set(word) & set('"$`\\!\n')
    return f'"{word}"' if plain else shlex.quote(word)
