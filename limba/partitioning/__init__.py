"""Device meshes, their rules for logical axes, and the rows that a host reads. The engine above may import it."""
