"""Panics of libraries that are written in Rust, such as tokenizers: exceptions that pass every `except Exception`."""

import contextlib
from collections.abc import Iterator

from limba.files.untrusted_files import cut

_MODULE = "pyo3_runtime"  # No module of this name can be imported.


def is_panic(error: BaseException) -> bool:
    """Whether a library in Rust met what it holds impossible."""
    return type(error).__module__ == _MODULE


def describe(error: BaseException) -> str:
    """A panic as a sentence for a user."""
    words = cut(str(error)).rstrip(".")
    return f"a library fails on its input ({words}). A file that it reads is damaged, or made to do this."


@contextlib.contextmanager
def of_file(file: str) -> Iterator[None]:
    """Panics of the tokenizer in a file, and the library's errors, become a ValueError that names it."""
    try:
        yield
    except BaseException as error:
        if not is_panic(error) and type(error) is not Exception:  # The library raises nothing more exact.
            raise
        raise ValueError(
            f"{file} is not a tokenizer.json with which the library tokenizers works ({cut(str(error))}): it is "
            "damaged, or an expression in it takes too many steps. Download it again, or take another tokenizer."
        ) from error
