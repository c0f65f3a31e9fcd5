"""gin files, the command line, T5X's names, gin's errors. Checkpoints, inference and the commands may import it."""
