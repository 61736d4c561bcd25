"""The client's side of the engine: transactions and what they read."""
