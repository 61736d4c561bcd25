"""x"""
from fdbqueue.testing.clock import Clock
from fdbqueue.testing.faults import FaultyDatabase, FaultyTransaction
__all__ = ["Clock","FaultyDatabase", "FaultyTransaction"]
