"""Recording a call, and what surrounds it."""
