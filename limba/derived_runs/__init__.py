"""Runs that are made of other runs: the mean of checkpoints. Nothing but the command line imports it."""
