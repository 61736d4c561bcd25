"""Operations that run inside one transaction.

A transaction may run twice. Times, identities and random numbers are therefore arguments.
"""
