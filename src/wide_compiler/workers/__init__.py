"""Engine and workers: a stream of small instructions, replayed on DTensor by local processes."""
