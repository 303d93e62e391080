"""Analysis of what the body of a site does, with the real objects bound."""
