"""The steps of one transaction: each method of a class here is part of one.

`now` is the client's time. Times are in milliseconds since 1970 by default.

A function that begins a read returns the future, or a function that waits for it.
"""
