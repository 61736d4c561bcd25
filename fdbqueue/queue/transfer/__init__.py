"""Queues and jobs on their way to or from files and other databases."""
