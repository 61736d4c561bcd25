"""Steps of jobs within a transaction, and signals."""
