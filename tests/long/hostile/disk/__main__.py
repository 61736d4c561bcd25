"""Open a state that a power cut may leave of a database, as a failure of a test names it.

python -m tests.long.hostile.disk RECORD STATE [DIRECTORY]

The record is that of the failed run. With a directory, the files of the state stay there.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.long.hostile.disk.crash_model import Directory
from tests.long.hostile.disk.crash_states import Known, examine, in_memory
from tests.long.hostile.disk.shim import read_record


def main(record: str, state: str, directory: str | None = None) -> int:
    cut, _, name = state.partition("/")
    replayed, known = Directory(), Known()
    for _, entry in zip(range(int(cut)), read_record(Path(record))):
        replayed.apply(entry)
        known.apply(entry)
    if directory is not None:
        replayed.state(name).write(Path(directory))
    with in_memory() as scratch:
        replayed.state(name).write(scratch / "db")
        problem = examine(scratch / "db", known)
    print(known, problem, sep="\n")
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
