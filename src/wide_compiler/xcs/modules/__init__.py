"""Loops over PyTorch modules and tensors: wide models and vmap."""
