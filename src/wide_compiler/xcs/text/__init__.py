"""The text of a function: its sites, and how it is rewritten."""
