"""Every key and value of a queue. Only this package packs and unpacks keys.

A queue is one subspace. `Layout` names its key spaces, and `docs/reference/keys.md` describes them.
A change to the keys needs a new layout version; `tests/layout/test_layout.py` pins the bytes.
"""
