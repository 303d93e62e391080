"""All items of a site at once, as NumPy arrays with a lane axis in front."""
