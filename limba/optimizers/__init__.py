"""Optimizer definitions, Adafactor, optax's optimizers, schedules, freezing. Models and rooms above may import it."""
