"""`limba lint` and `limba gin-check`: mistakes in a configuration. Nothing but the command line imports it."""
