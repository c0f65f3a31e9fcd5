"""Parameters that begin as what counts of the training texts predict. Gin files name it; the commands may import it."""
