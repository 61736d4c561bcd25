"""The tutorial can be followed literally: its files, commands, clicks and outputs are real."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.support.chromium import browser, in_chromium  # noqa: F401
from tests.support.pages import TUTORIAL, matches
from tests.support.shell import Shell
from tests.support.waiting import wait_until

VARYING = {
    r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}": "TIME",
    r"\bFB[\w-]{20,}": "ID",
    r"[\d.]+ (m?s)\b": r"NUMBER \1",
    r"in [\d.]+s": "in SECONDS",
    r"\d:\d\d:\d\d": "AGE",
    r"127\.0\.0\.1:\d+": "ADDRESS",
}
"""What is different in each run, and its name."""


class Reader:
    """Someone who saves the files of the tutorial and types its commands, in one directory."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.shell = Shell(home, "")
        for name in ("FDBQ_DB", "PYTEST_ADDOPTS", "PYTEST_CURRENT_TEST", "COLUMNS"):
            self.shell.environment.pop(name, None)
        self.running: list[subprocess.Popen[bytes]] = []
        self.printed = home  # the file of what the last program prints
        _, *parts = re.split(r"^## (.*)\n", TUTORIAL.read_text(), flags=re.M)
        self.sections = dict(zip(parts[::2], parts[1::2], strict=True))

    def follow(self, title: str) -> None:
        """Do what the code blocks of the next section say."""
        section = self.sections.pop(title)
        for language, block in re.findall(r"^```(\w+)\n(.*?)^```", section, re.M | re.S):
            if language in ("python", "ini"):
                path = block.split("\n")[0].removeprefix("# ")
                (self.home / Path(path).name).write_text(block)
            elif language == "console":
                for command, expected in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
                    self.type(command, expected)

    def type(self, command: str, expected: str) -> None:
        """Type a command; wait for the output shown, up to and after a Ctrl-C."""
        process = self.start(["bash", "-c", command.replace("serve", "serve --port 0")])
        before, interrupt, after = expected.partition("^C\n")
        try:
            wait_until(lambda: self.shows(before) or process.poll() is not None)
        except AssertionError:
            process.kill()
        if interrupt:
            os.killpg(process.pid, signal.SIGINT)
        if not command.startswith("fdbq serve"):
            process.wait()
        assert self.shows(before + after), self.printed.read_text()

    def start(
        self, command: list[str], cwd: Path | None = None, **environment: str
    ) -> subprocess.Popen[bytes]:
        """Start a program; return it."""
        self.printed = self.home / f".printed{len(self.running)}"
        with self.printed.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.shell.environment | environment,
                cwd=cwd or self.home,
                start_new_session=True,
            )
        self.running.append(process)
        return process

    def shows(self, expected: str) -> bool:
        """Return whether the last program has printed what the tutorial shows."""
        printed = self.printed.read_text().replace(str(self.home), "/home/ada/shop")
        for pattern, name in VARYING.items():
            printed, expected = (re.sub(pattern, name, text) for text in (printed, expected))
        return any(matches(printed, each) for each in in_either_order(expected))


def in_either_order(log: str) -> list[str]:
    """Return a log, and if two jobs end in it, the one in which they end in the other order."""
    records = re.split(r"^(?=\S+ fdbqueue\.(?!.*this was the last attempt))", log, flags=re.M)
    ends = [n for n, each in enumerate(records) if re.search(r" (done|dead), attempt", each)]
    if len(ends) != 2:
        return [log]
    first, second = ends
    swapped = [*records]
    swapped[first], swapped[second] = records[second], records[first]
    return [log, "".join(swapped)]


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    for process in reader.running:
        process.kill()
        process.wait()


@pytest.mark.long
@in_chromium
def test_the_tutorial_can_be_followed(reader: Reader, browser: Browser) -> None:  # noqa: F811
    page = browser.new_page()
    del reader.sections["Install"]  # the wheel has a test of its own
    reader.follow("Write a job")
    reader.follow("Push a call")
    reader.follow("Run a worker")

    reader.follow("Find the failure")
    (address,) = re.findall(r"http://[\d.:]+", reader.printed.read_text())
    page.goto(address)
    alerts = page.get_by_role("region", name="Alerts")
    expect(alerts).to_contain_text("mailhas 1 dead letter")
    alerts.get_by_role("link", name="mail").click()
    expect(page.locator(".items tbody tr")).to_contain_text("KeyError: 'email'")
    page.locator(".items tbody tr").get_by_role("link").click()
    expect(page.locator("main")).to_contain_text('File "' + str(reader.home / "shop.py"))

    reader.follow("Repair the cause")
    page.get_by_role("button", name="Retry", exact=True).click()
    expect(page.locator("main")).to_contain_text("ready")
    reader.follow("Retry the job")

    reader.follow("Deploy it")
    unit = (reader.home / "shop-worker.service").read_text()
    for there, here in {
        "/opt/shop/.venv/bin": Path(sys.executable).parent,
        "/opt/shop": reader.home,
        "/var/lib/shop": reader.home / "state",
    }.items():
        unit = unit.replace(there, str(here))
    service = dict(line.split("=", 1) for line in unit.splitlines() if "=" in line)
    environment = dict(pair.split("=", 1) for pair in service["Environment"].split())
    (reader.home / "state").mkdir()  # as StateDirectory= does
    reader.start([sys.executable, "buy.py", "ada", "3"], **environment).wait()
    worker = reader.start(
        shlex.split(service["ExecStart"]), Path(service["WorkingDirectory"]), **environment
    )
    wait_until(lambda: "shop.confirm done" in reader.printed.read_text())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait() == 0

    assert list(reader.sections) == ["Next steps"]
