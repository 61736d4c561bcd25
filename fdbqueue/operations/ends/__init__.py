"""Effects of the end of an item, in the transaction that ends it."""
