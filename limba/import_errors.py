"""What to say of a module of the user's that fails when it is imported: by a gin file, or by its name."""

import traceback


def describe(error: BaseException) -> str | None:
    """The module, the line in it and the exception; None for an error that no module's text raised.

    Args:
      error: as caught around the import.
    """
    if isinstance(error, SyntaxError) and str(error.filename).endswith(".py"):
        return f"the Python module {error.filename}, line {error.lineno}: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    imported = [frame.filename for frame in frames if frame.name == "<module>"]
    if not imported:
        return None
    # Of the module that was being imported last, and not of the library that it called.
    line = [frame.lineno for frame in frames if frame.filename == imported[-1]][-1]
    return f"the Python module {imported[-1]}, line {line}: {type(error).__name__}: {error}"
