"""Accelerators: which there are, what a program is traced for, compilers and their cache, memory, logs of C++.

Every room but `files` and `data` may import it.
"""
