"""`limba profile`: where the time of a training step goes. Nothing but the command line imports it."""
