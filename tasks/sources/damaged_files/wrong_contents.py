"""Files whose content is not what their name says: not compressed, cut, no Parquet, no text."""

import codecs
import lzma
import zlib

from limba.tasks.sources.damaged_files import shards

# What files of a format begin with.
_BEGINNINGS = {
    ".gz": b"\x1f\x8b",
    ".bz2": b"BZh",
    ".xz": b"\xfd7zXZ\x00",
    ".zst": b"\x28\xb5\x2f\xfd",
    ".parquet": b"PAR1",
}
_UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_NO_TEXT = bytes({*range(32), 127} - set(b"\t\n\v\f\r\x1a\x1b"))
# Bytes that are looked at, and the share of control characters from which a file is not text. Random bytes have 0.1,
# texts of any encoding nearly none.
_BYTES, _SHARE = 4096, 0.02


def find(shard: shards.Shard, builder: str | None) -> str | None:
    """What a local file is instead, and the remedy, as one or two sentences; None if the name fits.

    Args:
      builder: the loader: "json", "text", "csv", "parquet" or "arrow".
    """
    if shard.is_remote:
        return None
    try:
        with shard.location.open("rb") as file:
            begin = file.read(_BYTES)
            file.seek(max(0, file.seek(0, 2) - 4))
            end = file.read(4)
    except OSError:
        return None
    suffix = shard.path.suffix.lower()
    found = next((name for name, first in _BEGINNINGS.items() if begin.startswith(first)), None)
    if suffix in _BEGINNINGS and suffix != ".parquet":
        if found == suffix:
            return (
                None
                if _can_be_read(shard)
                else "Its compressed data are cut off or damaged. Copy or download the file again."
            )
        if found is None:
            return f"It is not compressed: rename it without {suffix}."
        return f"It is a file of the format {found[1:]}: rename it, with {found} in place of {suffix}."
    if builder == "arrow":
        return None  # A stream of Arrow begins with no mark.
    if builder == "parquet":
        if found == ".parquet":
            return None if end == begin[:4] else "Its end is missing. Copy or download the file again."
        return (
            "It is not a Parquet file: name it for the format that it has, such as .jsonl or .txt, or write it again."
        )
    if found is not None:
        return f"It is a file of the format {found[1:]}: " + (
            "rename it, with .parquet as its ending."
            if found == ".parquet"
            else f"rename it, with {found} behind its name."
        )
    if not begin.startswith(_UTF_16) and _is_no_text(begin):
        return "It is not a text file: it has many bytes that no text has. Leave it out, or export its text as UTF-8."
    return None


def _can_be_read(shard: shards.Shard) -> bool:
    try:
        with shard.open() as file:
            while file.read(1 << 20):
                pass
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        return False
    return True


def _is_no_text(content: bytes) -> bool:
    return len(content) - len(content.translate(None, _NO_TEXT)) > _SHARE * len(content)
