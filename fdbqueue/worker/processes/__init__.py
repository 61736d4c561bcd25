"""The processes that workers run in: several workers in one, several processes on a host."""
