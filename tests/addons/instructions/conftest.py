"""The fixture of the core's tests of tasks that forgets the tasks of a test."""

from tests.tasks.conftest import _clean_registry  # noqa: F401
