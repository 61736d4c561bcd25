"""Queues in the caller's transactions: what clients do, and the model.

Nothing here knows in which simulator it runs.
"""
