"""Runs made of other runs: means of checkpoints, branches whose rate decays. Only the command line imports it."""
