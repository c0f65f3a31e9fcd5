"""What the core asks this add-on for: see `PARTS` in `limba/addons/table.py`."""

from limba.addons.seqio.foreign_readers import DatasetBatches, open_readers
from limba.addons.seqio.lint_sources import check
from limba.addons.seqio.seqio_predictions import chunks, make_evaluator, set_folders
from limba.addons.seqio.seqio_streams import kind_of, may_be_endless, reads_documents
from limba.addons.seqio.tf_documents import documents
from limba.addons.seqio.tf_steps import apply

__all__ = [
    "DatasetBatches",
    "apply",
    "check",
    "chunks",
    "documents",
    "kind_of",
    "make_evaluator",
    "may_be_endless",
    "open_readers",
    "reads_documents",
    "set_folders",
]
