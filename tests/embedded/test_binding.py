"""What the official binding's decorator does with an embedded database."""

from __future__ import annotations

from tests.support.programs import python

# The binding loads its C library at import. It never calls it here.
_SCRIPT = """
import ctypes
from unittest.mock import MagicMock

library = MagicMock()
library.fdb_select_api_version_impl.return_value = 0
load, ctypes.CDLL = ctypes.CDLL, lambda *_: library
import fdb

fdb.api_version(730)
ctypes.CDLL = load

import fdbqueue

db = fdbqueue.open("memory:")

@fdb.transactional
def write(tr):
    tr[b"k"] = b"v"

tr = db.create_transaction()
for argument in (db, tr, tr.snapshot):
    try:
        write(argument)
    except (AttributeError, TypeError) as error:
        print(error)
print(len(db[:]), fdbqueue.transactional(lambda tr: tr[b"k"].present())(db))
"""


def test_the_decorator_of_the_binding_is_refused() -> None:
    done = python(_SCRIPT)
    refusal = (
        "fdb.transactional does not retry transactions of an embedded database; decorate the "
        "function with fdbqueue.transactional, which runs on both engines"
    )
    assert done.stdout.splitlines() == [*[refusal] * 3, "0 False"], done.stderr
