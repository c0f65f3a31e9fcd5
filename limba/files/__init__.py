"""Files and buckets: reading, writing, files of others, what of them may be shown. Every room may import it."""
