"""The version. In a folder that holds a clone, Python may take the clone for the package: it has no attributes."""

VERSION = "0.1.0"
