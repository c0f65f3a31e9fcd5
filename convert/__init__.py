"""The doors to other formats: `python -m convert --help`."""

# First of all: it takes the working directory off Python's path.
from limba.files import python_path  # noqa: F401

if __name__ == "convert":  # Python found this folder of a clone by itself; the package is limba.convert.
    from limba.files import repository

    repository.take_name(__name__)
