"""Where a page or a table is written."""

from pathlib import Path

from limba.files import written_files


def require_folder(path: Path, flag: str) -> None:
    """Raises FileNotFoundError if the folder of a file to write does not exist; `flag` names it for the message."""
    if not path.parent.is_dir() and not written_files.is_stream(path):
        raise FileNotFoundError(f"{flag} {path}: the folder {path.parent} does not exist. Make it, or choose another.")
