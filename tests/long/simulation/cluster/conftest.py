"""Pytest imports modules to look for doctests; those of the simulator load only inside of it."""

collect_ignore = ["inside", "workloads"]
