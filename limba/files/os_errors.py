"""Errors of the operating system, of TensorStore and of the hub as one sentence with the file and what helps."""

import errno
import io
import re
import resource
import traceback

# What a command found, and what to do.
_WORDS = {
    errno.ENOENT: "does not exist.",
    errno.EISDIR: "is a folder, and a file belongs there.",
    errno.EEXIST: "is a file, where a folder belongs: choose another place.",
    errno.ENOTDIR: "lies below a file, where a folder belongs.",
    errno.EACCES: "may not be read or written by this user: give the user the right, or choose another place.",
    errno.EPERM: "may not be changed by this user: give the user the right, or choose another place.",
    errno.EROFS: "is on a file system that can only be read: choose another place.",
    errno.ENOSPC: "cannot be written: the disk is full. Make room, or choose another place.",
    errno.EDQUOT: "cannot be written: this user's share of the disk is full. Make room, or choose another place.",
    errno.EIO: "cannot be read or written: its disk or network has an error. Take a copy on another disk.",
    errno.ESTALE: "is no longer what was opened: its file server has another. Give the command again.",
}
_FULL = (errno.ENOSPC, errno.EDQUOT)
# TensorStore's word for what is wrong, and the rest of its message, without its settings.
_TENSORSTORE = re.compile(
    r"(NOT_FOUND|OUT_OF_RANGE|DATA_LOSS|FAILED_PRECONDITION|INVALID_ARGUMENT): ((?:Error|chunk) .*?)(?: \[\w+=.*)?",
    re.DOTALL,
)
# Python's own words, as other messages quote them.
_QUOTED = re.compile(r"\[Errno (\d+)\] [^:\[\]]+: '([^']+)'\.?")
_UNNAMED = re.compile(r"\[Errno (\d+)\] [^:\[\]]+")
_FILE = re.compile(r'local file "([^"]+)"')


def describe(error: BaseException, text: str | None = None) -> str | None:
    """The sentence for an error; None for one that has a message of its own. `text` is the error's, if shorter."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"This process may not open more files: its limit is {soft}, at most {hard}. Raise it: "
            f"ulimit -n {min(4096, hard) if hard > 0 else 4096}."
        )
    if isinstance(error, OSError) and error.filename is not None and error.errno in _WORDS:
        return f"{error.filename} {_WORDS[error.errno]}"
    text = str(error) if text is None else text
    if "Too many open files" in text:
        return describe(OSError(errno.EMFILE, ""))
    if (quoted := _QUOTED.search(text)) and int(quoted[1]) in _WORDS:
        return text.replace(quoted[0], f"{quoted[2]} {_WORDS[int(quoted[1])]}")
    # Of a file that is open; in gin's copy of an error its text alone has the number.
    if (unnamed := _UNNAMED.fullmatch(text)) and (code := int(unnamed[1])) in (*_FULL, errno.EIO, errno.ESTALE):
        return f"{_opened(error, code in _FULL) or 'A file'} {_WORDS[code]}"
    if isinstance(error, ValueError | OSError) and (found := _TENSORSTORE.fullmatch(text)):
        file = _FILE.search(found[2])
        name = file[1] if file else "A checkpoint"
        return f"{name} is damaged or not whole ({found[2]}). Take another checkpoint, or a copy of this one."
    if remedy := _hub_remedy(error, text):
        return f"{text.strip().removesuffix('.')}. {remedy}"
    return None


def _opened(error: BaseException, is_full: bool) -> str | None:
    """The file of which the system refused bytes, which it does not name: of the innermost call that has one."""
    found = None
    for frame, _ in traceback.walk_tb((error.__cause__ or error).__traceback__):
        for value in frame.f_locals.values():
            if isinstance(value, io.IOBase) and not (is_full and str(getattr(value, "mode", "")).startswith("r")):
                name = getattr(value, "name", None)
                found = name if isinstance(name, str) else found
    return found


# Of `datasets` and huggingface_hub; TensorFlow keeps nothing but the texts of errors in a generator of the user's.
_HUB_REFUSALS = re.compile(
    r"DatasetNotFoundError|GatedRepoError|RepositoryNotFoundError|Access to .{1,200} is restricted|gated dataset"
)


def _hub_remedy(error: BaseException, message: str) -> str:
    """A sentence to add to the message of an error: about the token. "" if the hub refused nothing, or it is said."""
    texts = [message]
    cause: BaseException | None = error
    while cause is not None:
        texts.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    if "HF_TOKEN" in message or not any(map(_HUB_REFUSALS.search, texts)):
        return ""
    import huggingface_hub

    if huggingface_hub.get_token():
        return "The token may not read it: check the name and whose token it is, and ask for access on its page."
    return "There is no token, which a private or gated one needs: set HF_TOKEN, or run `hf auth login`."
