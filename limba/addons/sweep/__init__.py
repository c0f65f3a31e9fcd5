"""`limba sweep`: many trials of gin bindings, and the best of them. Nothing but the command line imports it."""
