"""Vectors of texts: `limba embed`, and folders of sentence-transformers. Only the command line imports it."""
