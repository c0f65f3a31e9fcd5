"""Where numbers stop being finite, and the errors for it. Inference, training and the converters may import it."""
