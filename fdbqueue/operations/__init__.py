"""Operations that run inside one transaction.

The transaction may run twice. Times, identities and random numbers are therefore arguments.
"""
