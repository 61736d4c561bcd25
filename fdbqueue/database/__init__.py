"""Running transactions: opening, retrying, exactly once."""
