"""`limba vocab`: fewer, more or other pieces for a trained T5 or encoder. Only the command line imports it."""
