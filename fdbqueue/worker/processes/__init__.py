"""The processes that workers run in: one worker in each, several processes on a host."""
