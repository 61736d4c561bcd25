"""How a transaction runs: opening, retrying, exactly once."""
