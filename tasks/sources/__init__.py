"""Where documents come from: local files, URLs, data sets on the Hugging Face hub; splits; rows by number.

Of Limba it imports `limba.files` only; every room of `tasks` but `objectives` may import it. Task modules use these
names.
"""

from limba.tasks.sources.corpora import HubSource, HuggingFaceSource
from limba.tasks.sources.sharded import ShardedSource

__all__ = ["HubSource", "HuggingFaceSource", "ShardedSource"]
