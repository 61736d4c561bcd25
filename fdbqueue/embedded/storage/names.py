"""The files of a database.

fdbqueue.sqlite       the database
fdbqueue.sqlite-wal   SQLite's write-ahead log: the commits since the last checkpoint
fdbqueue.sqlite-shm   SQLite's index of it, shared by the processes
fdbqueue.lock         the writers' lock
fdbqueue.failed       a sync has failed: nobody commits until the files have been copied
fdbqueue.copy         such a copy, under way, with its own -wal and -shm
fdbqueue.copied       such a copy, complete and on disk

A process that has the database open holds a shared lock on the directory.
"""

from __future__ import annotations

DATABASE_FILE = "fdbqueue.sqlite"
LOG_FILE = f"{DATABASE_FILE}-wal"
INDEX_FILE = f"{DATABASE_FILE}-shm"
LOCK_FILE = "fdbqueue.lock"
FAILED_FILE = "fdbqueue.failed"
COPY_FILE = "fdbqueue.copy"
COPIED_FILE = "fdbqueue.copied"
