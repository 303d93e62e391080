"""Run several items at the same time in threads."""
