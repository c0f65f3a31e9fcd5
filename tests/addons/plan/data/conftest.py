"""Registries that are as they were before a test, and SeqIO's tasks as the core's tests have them."""

from tests.addons.seqio.conftest import (  # noqa: F401
    register_with_seqio,
    seqio_task,
)
from tests.tasks.conftest import _clean_registry  # noqa: F401
