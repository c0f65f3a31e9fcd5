"""The remedy where the Hugging Face hub does not let a user read a data set."""

import re

# Of `datasets` and huggingface_hub; TensorFlow keeps nothing but the texts of errors in a generator of the user's.
_REFUSALS = re.compile(
    r"DatasetNotFoundError|GatedRepoError|RepositoryNotFoundError|Access to .{1,200} is restricted|gated dataset"
)


def remedy(error: BaseException, message: str) -> str:
    """A sentence to add to the message of an error: about the token. "" if the hub refused nothing, or it is said."""
    texts = [message]
    cause: BaseException | None = error
    while cause is not None:
        texts.append(f"{type(cause).__name__}: {cause}")
        cause = cause.__cause__ or cause.__context__
    if "HF_TOKEN" in message or not any(map(_REFUSALS.search, texts)):
        return ""
    import huggingface_hub

    if huggingface_hub.get_token():
        return "The token may not read it: check the name and whose token it is, and ask for access on its page."
    return "There is no token, which a private or gated one needs: set HF_TOKEN, or run `hf auth login`."
