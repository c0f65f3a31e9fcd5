"""The doors to other formats: `python -m convert --help`."""

# First of all: it takes the working directory off Python's path.
from limba.files import python_path  # noqa: F401
