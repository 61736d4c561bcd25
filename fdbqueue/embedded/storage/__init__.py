"""The server side of the engine: snapshots and commits."""
