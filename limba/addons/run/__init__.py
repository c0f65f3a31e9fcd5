"""`limba run`: a training from the keys of a Hugging Face script. Nothing but the command line imports it."""
