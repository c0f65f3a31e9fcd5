"""Checkpoints as files: folders, formats (Orbax's, T5X's), tensors. The engine and the converters may import it."""
