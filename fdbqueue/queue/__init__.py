"""What a user calls: the queues, their names, checks and imports."""
