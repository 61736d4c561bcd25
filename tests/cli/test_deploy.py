"""`fdbq deploy` stores what an app declares, and says what differs."""

from __future__ import annotations

import json

from tests.support.shell import Shell, error_of

SHOP = """
import fdbqueue
app = fdbqueue.App()
app.queue("mail", rate=({rate}, "1m"), keep="7d", groups={{"concurrency": 2}})
"""
DEPLOY = ("deploy", "--app", "shop:app")


def write_shop(local: Shell, rate: object = 100) -> None:
    (local.path / "shop.py").write_text(SHOP.format(rate=rate))


def test_a_deployment_is_printed_and_checked(local: Shell) -> None:
    write_shop(local)
    assert "there is no database" in error_of(local(*DEPLOY, "--check"))
    assert local.output(*DEPLOY).splitlines() == [
        *("mail: keep_seconds 1d -> 7d", "mail: rate none -> 100/1m"),
        "mail: groups.concurrency none -> 2",
    ]
    assert local.output(*DEPLOY, "--check") == "nothing differs\n"
    assert "rate            100/1m" in local.output("limit", "mail")
    local.output("limit", "mail", "--rate", "5/1s")
    by_hand = "mail: rate stays 5/1s, set by hand; the code has 100/1m\n"
    checked = local(*DEPLOY, "--check")
    assert (checked.stdout, checked.returncode) == (by_hand, 1)
    assert local.output(*DEPLOY) == by_hand
    forced = json.loads(local.output(*DEPLOY, "--force", "--json"))
    assert forced == {
        **{"queue": "mail", "setting": "rate", "stored": [5, 1], "declared": [100, 60]},
        "reason": None,
    }
    assert local.output(*DEPLOY, "--json") == ""


def test_a_mistake_in_the_code_changes_nothing(local: Shell) -> None:
    write_shop(local)
    local.output(*DEPLOY)
    write_shop(local, rate=0)
    assert "the number of a rate is a number from 1 to 10,000, not 0" in error_of(local(*DEPLOY))
    assert "100/1m" in local.output("limit", "mail")
