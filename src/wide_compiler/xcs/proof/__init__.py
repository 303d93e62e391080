"""What the body of a site does, proven with the real objects bound."""
