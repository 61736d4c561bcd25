"""The processes of a host that work on one queue share transactions: one of them leads."""
