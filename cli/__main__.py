"""`fdbq`, and `python -m fdbq`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run `fdbq`; what it needs is loaded here, so that an interrupt meanwhile is no traceback."""
    try:
        from .main import main as run
    except KeyboardInterrupt:
        print("fdbq: interrupted; what was done before that is done", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
