"""Running of transactions: opening a database, retrying, exactly-once execution."""
