"""The steps of one transaction.

`transitions.py` has the table of transitions; the maintainers that follow it have one file each.
A function that begins a read returns the future, or a function that waits for it: all reads of a
step begin before the first is waited for, so that they take one round trip (`parallel.py`).
"""
