"""Schedules, steps, signals and batches in a simulation: what clients do, and the ledger.

Nothing here knows in which simulator it runs.
"""
