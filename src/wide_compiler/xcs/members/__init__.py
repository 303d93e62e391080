"""Modules of PyTorch over all items at once: the wide model, and vmap."""
