"""The server's side of the engine: snapshots and commits."""
