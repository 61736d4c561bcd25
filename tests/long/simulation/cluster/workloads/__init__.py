"""The workloads: what the clients of a simulation do, and how it is checked."""

WORKLOADS = ("queues", "databases", "workers", "durable", "groups")
"""Each is a class in the module of its name; seeds run them in turns."""
