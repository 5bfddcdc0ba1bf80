"""Time of a run: the cost of its communication, its graph, and what would change it."""
