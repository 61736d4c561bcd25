"""The store: a SQLite database, a lock for its writers, and syncs."""
