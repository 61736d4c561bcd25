"""Entry point of `fdbq` and `python -m fdbq`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run `fdbq`, with signal handlers installed before other modules are imported."""
    try:
        from .interrupts import install

        install()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            os.write(2, b"fdbq: interrupted; committed changes are kept\n")
        os._exit(130)
    from .main import main as run

    run()


if __name__ == "__main__":
    main()
