"""Engine and workers: the controller sends a stream of small instructions, workers run them on DTensor."""
