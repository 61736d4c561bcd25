"""The routes below `/v1`: the whole library, for queues of every kind."""
