"""Programs for accelerators that XLA does not find by itself: attention and norms, in Pallas or by cuDNN.

The network asks the table of add-ons for them (`limba.network.kernels`); nothing imports it.
"""
