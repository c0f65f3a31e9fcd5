"""The doors to other formats: `python -m convert --help`."""
