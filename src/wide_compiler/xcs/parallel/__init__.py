"""Several items at the same time, in threads: those that wait, and those that compute."""
