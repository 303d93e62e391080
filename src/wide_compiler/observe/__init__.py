"""What the workers were told: the instruction log."""
