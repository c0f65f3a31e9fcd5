"""Files that others wrote: opened only if they are files, read within a budget, and shown in few words.

Whoever parses such a file gets its bytes from here. Every message names the file, and what is wrong with it.
"""

import stat
import types
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

# Of text and JSON that is parsed as a whole. The largest in use, tokenizers of 250,000 pieces, have 17 MB.
MOST_BYTES = 64 * 2**20

_DEVICE = "a device"
_KINDS = ((stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, _DEVICE), (stat.S_ISBLK, _DEVICE))
# What git-lfs leaves in place of a file that it did not download; by its specification below this size.
_POINTER, _MOST_OF_POINTER = b"version https://git-lfs.github.com/", 1024
# Text up to this length is shown whole.
_SHOWN_LENGTH = 60
_CUT_LENGTH = 200
# How a formula of a spreadsheet begins.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
# Python refuses to print a number of more than 4300 digits.
_SHOWN_BITS = 256


def check_is_file(path: Path) -> int:
    """The size of a file in bytes. What is none is not opened: a FIFO would wait for its writer, a device never ends.

    Raises:
      FileNotFoundError: if there is nothing, or a link that leads to nothing.
      ValueError: if it is a folder, a FIFO, a socket or a device, or only says where git-lfs has the file.
    """
    try:
        found = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise FileNotFoundError(
                f"{path} is a link to {path.readlink()}, which does not exist; copy or download the file itself."
            ) from None
        raise FileNotFoundError(f"There is no file {path} (working directory {Path.cwd()}).") from None
    except OSError as error:  # A circle of links, a name that is too long, a folder that may not be read.
        raise ValueError(f"{cut(str(path))} cannot be opened: {error.strerror}.") from None
    if stat.S_ISDIR(found.st_mode):
        raise _no_file(path, "a folder")
    refuse_endless(path, found.st_mode)
    refuse_pointer(path, found.st_size)
    return found.st_size


def refuse_endless(path: Path, mode: int) -> None:
    """Raises ValueError for what waits when it is opened or read, or never ends, or has a process's environment."""
    for is_kind, kind in _KINDS:
        if is_kind(mode):
            raise _no_file(path, kind)
    if path.resolve().is_relative_to("/proc"):
        raise _no_file(path, "of the kernel")


def _no_file(path: Path, kind: str) -> ValueError:
    return ValueError(f"{path} is {kind}, not a file; give the file itself, or put a copy of it in its place.")


def refuse_pointer(path: Path, size: int) -> None:
    """Raises ValueError if a regular file of `size` bytes only says where git-lfs has the file."""
    if size < _MOST_OF_POINTER:
        with path.open("rb") as file:
            if file.read(len(_POINTER)) == _POINTER:
                raise ValueError(f"{path} is only git-lfs's pointer to the file; run `git lfs pull` in its folder.")


def read_bytes(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file.

    Raises:
      FileNotFoundError, ValueError: as `check_is_file`; ValueError also if it is larger than `most_bytes`.
    """
    size = check_is_file(path)
    if size > most_bytes:
        raise ValueError(f"{path} has {size:,} bytes; a file of this kind has at most {most_bytes:,}.")
    with path.open("rb") as file:
        return file.read(most_bytes)


def read_text(path: Path, most_bytes: int = MOST_BYTES) -> str:
    """The text of a file in UTF-8, without the mark (BOM) that some editors put before it.

    Raises:
      FileNotFoundError, ValueError: as `read_bytes`; ValueError also as `decode`.
    """
    return decode(read_bytes(path, most_bytes), str(path))


def decode(content: bytes, where: str) -> str:
    """UTF-8 without a mark before it.

    Raises:
      ValueError: for bytes that are not UTF-8; it names `where`, the line and the column.
    """
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        start = error.start + len(content) - len(error.object)  # The codec leaves the mark out of its count.
        line = content.count(b"\n", 0, start) + 1
        column = start - content.rfind(b"\n", 0, start)
        raise ValueError(
            f"{where} is not UTF-8: byte 0x{content[start]:02x} at line {line}, byte {column}; save it as UTF-8."
        ) from None


def check_stays(path: Path) -> None:
    """Of a file that is copied as it is: it lies in its folder, or is a link into the blobs of the hub's cache.

    Raises:
      ValueError: for another link, whose target a copy would make public.
    """
    folder = path.parent.resolve()
    # huggingface_hub keeps models--ORG--NAME/snapshots/REVISION/FILE as a link to models--ORG--NAME/blobs/HASH.
    homes = [above.parent / "blobs" for above in folder.parents if above.name == "snapshots"]
    real = path.resolve()
    if not any(map(real.is_relative_to, (folder, *homes))):
        raise ValueError(f"{path} is a link to {real}, outside of its folder; put a copy of the file in its place.")


def is_inside(name: object) -> bool:
    """Whether it can name a file in a folder, or in a folder of it, with slashes: it leads to no other place."""
    if not isinstance(name, str) or not name or "\0" in name:
        return False
    path = PurePosixPath(name)
    return not path.is_absolute() and ".." not in path.parts and str(path) == name


def shown(value: Any) -> str:
    """A value for a message: a short one as Python writes it, of others the beginning, or the type and the size.

    The `repr` of nested values can be longer than any memory: each level may name the one below twice.
    """
    if isinstance(value, bool | float | types.NoneType):
        return repr(value)
    if isinstance(value, int):
        bits = value.bit_length()
        return repr(value) if bits <= _SHOWN_BITS else f"a whole number of about {int(bits * 0.30103) + 1:,} digits"
    if isinstance(value, str):
        short = value if len(value) <= _SHOWN_LENGTH else value[:_SHOWN_LENGTH] + "…"
        return ascii(short) if any("\ud800" <= character <= "\udfff" for character in short) else repr(short)
    if isinstance(value, bytes | bytearray):
        return f"{len(value):,} bytes"
    if isinstance(value, list | tuple | dict | set | frozenset):
        kind = {list: "list", tuple: "tuple", dict: "table"}.get(type(value), type(value).__name__)
        return f"a {kind} of {len(value):,}" if value else f"an empty {kind}"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def cut(text: str) -> str:
    """A name for a message, in one line, without what a terminal obeys, and without its end if it is long."""
    short = text if len(text) <= _CUT_LENGTH else f"{text[:_CUT_LENGTH]}…"
    return short if short.isprintable() else "".join(map(_printable, short))


def _printable(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


def cell(value: Any) -> Any:
    """A value for a csv file: a text that a spreadsheet would compute has its mark of a text, `'`; numbers stay."""
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def some(items: Sequence[str], count: int = 5, separator: str = ", ") -> str:
    """The first of many texts for a message, and how many more there are."""
    more = f" and {len(items) - count} more" if len(items) > count else ""
    return separator.join(items[:count]) + more


def shown_list(values: Any) -> str:
    """A list of plain values for a message, cut after the first ones."""
    short = ", ".join(map(shown, values[:6]))
    return f"[{short}, …]" if len(values) > 6 else f"[{short}]"
