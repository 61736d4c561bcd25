"""Every key and every value of a queue. Only this package packs and unpacks keys.

A queue is one subspace, with keys packed by FoundationDB's tuple layer. `Layout` names the key
spaces; `docs/reference/keys.md` describes their contents.

Items follow FoundationDB's recipe for priority queues. `count` is higher than that of the
priority's last item, which a snapshot read finds, so pushes never conflict. It is also at least the
read version, and therefore higher than the counts of claimed and delayed items. `random`, a UUID of
version 7 with its time of creation, makes the key unique. A client that implements only the recipe,
with any bytes for `random`, can use the key space `items` as its queue.

An item's value is its payload, or a reference to the payload's pieces. A header may precede it.

Any change to the keys needs a new layout version. `tests/layout/test_layout.py` pins the bytes.
"""
