"""What one transaction does.

Each function is part of a transaction, which may run twice: times, identities and chance
come in as arguments.
"""
