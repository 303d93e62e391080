"""Loops over modules and tensors of PyTorch: the routers' lanes, and vmap."""
