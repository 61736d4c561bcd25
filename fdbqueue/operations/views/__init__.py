"""What a look at a queue reads: its items and its numbers, as they are stored."""
