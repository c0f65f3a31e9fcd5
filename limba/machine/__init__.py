"""Storage, folders, versions, requests to stop, native libraries: what is below a run. Every room may import it."""
