"""Folders of engines that serve models: how a model is written for one, and the proof by the engine itself.

`convert.to_ct2` imports it.
"""
