"""Files behind addresses as Python file objects, whose reads are repeated until they succeed: HTTP, and buckets.

It knows addresses and bytes only, and `tasks.sources` imports it.
"""
