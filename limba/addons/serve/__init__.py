"""`limba serve`: a small HTTP server that answers a team with one model. Only the command line imports it."""
