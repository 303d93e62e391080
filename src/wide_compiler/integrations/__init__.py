"""Wide models in other people's frameworks. Each file needs an extra of its own and is imported by name."""
