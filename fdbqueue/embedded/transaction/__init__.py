"""Transactions and what they read."""
