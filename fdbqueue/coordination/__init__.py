"""Whose transaction: batches of threads, staged pops, waiting."""
