"""Limits: how many items a queue may have, and how many may be claimed at a time."""
