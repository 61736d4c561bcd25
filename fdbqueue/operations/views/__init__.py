"""Read the items and the numbers of a queue as they are stored."""
