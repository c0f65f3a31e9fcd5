"""Runs that go on after a spike or NaN: back to a checkpoint, past the batches in between. `limba.train` imports it."""
