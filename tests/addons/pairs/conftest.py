"""Registries that are as they were before a test."""

from tests.tasks.conftest import _clean_registry  # noqa: F401
