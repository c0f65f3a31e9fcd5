"""The lines that statements of a recipe write, for tests of what `limba run` binds."""

from limba.gin_config.recipe import as_text


def lines_of(statements) -> list[str]:
    return as_text(statements).splitlines()
