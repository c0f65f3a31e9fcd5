"""The processes of a run: they join, compare, watch each other. The engine above and the commands may import it."""
