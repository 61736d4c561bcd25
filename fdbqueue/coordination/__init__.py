"""Shared transactions: batches of threads, staged pops, waiting."""
