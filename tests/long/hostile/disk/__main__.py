"""Open a state that a power cut may leave of a database, as a failure of a test names it.

python -m tests.long.hostile.disk RECORD STATE

The record is that of the failed run.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.long.hostile.disk.crash_states import Pick, examine_all

if __name__ == "__main__":
    record, state = sys.argv[1:]
    cut, _, name = state.partition("/")
    print(examine_all(Path(record), [Pick(int(cut), name)]))
