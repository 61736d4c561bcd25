"""The steps of one transaction.

`transitions.py` has the table of transitions; each maintainer that follows it has one file. In all
functions, `now` is the time of the client in milliseconds since 1970, and other times are in the
same unit unless they say otherwise.

A function that begins a read returns the future, or a function that waits for it. All reads of a
step begin before the first wait, so they take one round trip (`parallel.py`).
"""
