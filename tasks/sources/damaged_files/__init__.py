"""What is wrong with a file of a corpus, and the remedy: damaged lines, contents of another format, missing columns.

Nothing here runs before something has failed. It knows files only by `shards.Shard`, and `tasks.sources` imports it.
"""
