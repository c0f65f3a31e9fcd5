"""Folders for engines that serve models, and the proof by the engine itself. Only `limba convert` imports it."""
