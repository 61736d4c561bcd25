"""The order of `recipes/orders.py`."""

from __future__ import annotations

import pytest

from recipes import orders


def test_an_order_is_charged_booked_and_shipped(capsys: pytest.CaptureFixture[str]) -> None:
    orders.app.bind("memory:")
    handle = orders.fulfil.push("order 7")
    while handle.state() != "done":
        orders.app.work(drain=True)
    assert handle.result() == "1Z of charge of order 7"
    assert capsys.readouterr().out == "charge order 7\n"
    assert int.from_bytes(orders.app.db[b"booked order 7"], "little") == 1
