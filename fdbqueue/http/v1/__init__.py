"""The routes below `/v1`: everything that the library does, for queues of every kind."""
