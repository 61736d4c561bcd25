"""`fdbq`, and `python -m fdbq`."""

from __future__ import annotations

import os
import sys
import time

__all__ = ["main"]


def main() -> None:
    """Run `fdbq`; its signals are seen to before anything else is loaded."""
    try:
        from .signals import install

        install()
    except KeyboardInterrupt:
        if sys.stderr is not None:
            os.write(2, b"fdbq: interrupted; what was done before that is done\n")
        os._exit(130)
    try:
        time.time()
    except OverflowError:  # and so the modules that the others need cannot be loaded
        print("fdbq: this machine's clock is after 2262; set it and try again", file=sys.stderr)
        sys.exit(2)
    from .main import main as run

    run()


if __name__ == "__main__":
    main()
