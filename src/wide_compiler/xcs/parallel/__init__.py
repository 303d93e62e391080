"""Several items at the same time: threads for what waits, processes for what computes."""
