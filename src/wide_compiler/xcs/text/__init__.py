"""The source of a function: its sites, and how it is rewritten."""
