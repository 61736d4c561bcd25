"""The store: one SQLite database in a directory, a lock for its writers, and one sync a commit."""
