"""The data: sources, objectives, vocabularies and SeqIO tasks. The only package that imports TensorFlow."""
