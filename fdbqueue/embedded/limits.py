"""FoundationDB's limits and constants, which also hold in the embedded engine.

Source: FoundationDB documentation, "Known limitations"; backoff: `fdbclient/ClientKnobs.cpp`.
"""

from __future__ import annotations

END_OF_KEYS = b"\xff"  # FoundationDB has its system keys after it. There are none here.
KEY_SIZE_LIMIT = 10_000  # bytes
VALUE_SIZE_LIMIT = 100_000  # bytes
TRANSACTION_SIZE_LIMIT = 10_000_000  # bytes: keys, values and conflict ranges
TRANSACTION_LIFETIME = 5.0  # seconds from the first read to the commit
VERSIONS_PER_SECOND = 1_000_000
MAX_WATCHES = 10_000  # outstanding, per database object
MAX_WATCHES_LIMIT = 1_000_000  # of the option that sets another limit

INITIAL_BACKOFF = 0.01  # seconds
BACKOFF_GROWTH = 2.0
MAX_BACKOFF = 1.0  # seconds
