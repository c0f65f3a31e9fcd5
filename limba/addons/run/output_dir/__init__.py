"""What lies in OUTPUT_DIR when a run begins: an earlier run, checkpoints of the Trainer, and what a refusal leaves.

The modules of `limba.addons.run` may import it.
"""
