"""Fixtures of the core's tests, for those of the add-ons: an add-on is tried on what the core makes."""

from tests.convert.conftest import (  # noqa: F401
    _checks_in_forks,
    all_exported,
    exported,
    flax_t5,
    forks5,
    new_run,
    patience,
    python5,
    reference,
    sentences,
    spiece_model,
    spiece_of_few_rules,
    texts,
)
from tests.limba.conftest import kernels_are_right, whole  # noqa: F401
from tests.tasks.conftest import (  # noqa: F401
    corpus,
    data_files,
    lengths,
    make_document_fixture,
    mixture,
    places,
    task,
    write_jsonl_fixture,
)
