"""Run all items of a site at once, as NumPy arrays with a leading lane axis."""
