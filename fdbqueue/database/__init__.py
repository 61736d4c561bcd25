"""How a transaction runs: opened, retried, exactly once."""
