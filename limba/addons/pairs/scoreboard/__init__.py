"""What `limba scoreboard` measures of models: losses by character, blanks, pairs, retrieval, and leaks.

`limba/addons/table.py` names its command; no other room imports it.
"""
