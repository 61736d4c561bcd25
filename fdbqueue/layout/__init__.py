"""Every key and every value of a queue. Only this package packs and unpacks keys.

One queue is one subspace, and its keys are packed by FoundationDB's tuple layer. `Layout` names the
key spaces, and the page `docs/reference/keys.md` describes what they hold.

Items follow FoundationDB's recipe for priority queues. `count` is higher than the count of the last
item of the priority (`operations/items.py`). A snapshot read finds that item, so pushes never
conflict. `count` is also at least the read version, and therefore higher than the counts of claimed
and delayed items. `random` makes the key unique. It is a UUID of version 7, which contains the time
of its creation. A client that implements only the recipe, with any bytes for `random`, can use the
key space `items` as its queue.

The value of an item is its payload, or a reference to the payload's pieces. A header may precede
it: how often the item was claimed, when it expires, its unique key, and when it became ready.

Any change to the keys needs a new layout version. `tests/layout/test_layout.py` pins the bytes.
"""
