"""Send a server requests that are generated from its OpenAPI description.

    python -m tests.long.hostile.http_fuzz [--cases 5000] [--seed N]

The phases are those of schemathesis: the bounds of each parameter, requests at random, and the
stateful phase, which uses the results of requests in others. That one repeats until there are
enough cases. The table shows for each phase its operations, cases, and failures. All checks apply;
`tests.http.openapi_checks` has their exceptions.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import schemathesis
from rich.console import Console
from rich.table import Table
from schemathesis.engine import Status, events, from_schema

from tests.http.openapi_checks import REPLACED
from tests.support.server import serving

PHASES = ("coverage", "fuzzing", "stateful")
STEPS = 30  # of a scenario of the stateful phase
ROUNDS = 200  # of the stateful phase, at most


@dataclass
class Tally:
    """What happened in a phase."""

    operations: set[str] = field(default_factory=set)
    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    failures: dict[tuple[str, str, str], str] = field(default_factory=dict)  # and how to repeat
    errors: list[str] = field(default_factory=list)

    def add(self, recorder: Any) -> None:
        """Add the cases of a scenario."""
        for id, node in recorder.cases.items():
            interaction = recorder.interactions.get(id)
            if interaction is None or interaction.response is None:
                continue
            label, status = node.value.operation.label, interaction.response.status_code
            self.cases += 1
            self.operations.add(label)
            self.statuses[f"{status // 100}xx"] += 1
            for check in recorder.checks.get(id, ()):
                if check.status == Status.FAILURE:
                    failure = check.failure_info
                    text = f"{failure.failure.message}\n{interaction.response.text[:600]}\n"
                    key = label, check.name, _without_values(interaction.response.text)
                    self.failures.setdefault(key, text + failure.code_sample[:1000])


def _without_values(text: str) -> str:
    """Return the beginning of a response without what differs from request to request."""
    return "".join(each for each in text.partition('"detail":')[2][:60] if not each.isdigit())


def run(address: str, phase: str, examples: int, seed: int, round: int = 0) -> Iterator[Any]:
    """Run a phase of schemathesis and yield its events.

    Most rounds of the stateful phase use a few operations, so that these meet more often.
    """
    schema = schemathesis.openapi.from_url(f"{address}/openapi.json")
    if round % 4:
        ids = [each.ok().definition.raw["operationId"] for each in schema.get_all_operations()]
        schema = schema.include(operation_id=random.Random(seed).sample(ids, len(ids) // 3))
    config = schema.config
    config.seed = seed
    config.phases.update(phases=[phase])
    config.generation.update(max_examples=examples, database="none", no_shrink=True)
    config.checks.update(excluded_check_names=[each.__name__ for each in REPLACED])
    config.continue_on_failure = True
    config.phases.stateful.max_steps = STEPS
    yield from from_schema(schema).execute()


def fuzz(address: str, cases: int, seed: int, console: Console) -> dict[str, Tally]:
    """Run the phases; return what happened in each."""
    tallies = {phase: Tally() for phase in PHASES}
    for phase in PHASES:
        tally = tallies[phase]
        examples = max(10, cases // 100)
        for round in range(ROUNDS if phase == "stateful" else 1):
            for event in run(address, phase, examples, seed + round, round):
                if isinstance(event, events.ScenarioFinished):
                    tally.add(event.recorder)
                elif isinstance(event, events.NonFatalError):
                    tally.errors.append(f"{event.label}: {event.info.title} {event.value}")
                elif isinstance(event, events.FatalError):
                    raise event.exception
            total = sum(each.cases for each in tallies.values())
            if total >= cases and tally.cases >= cases // 2:
                break
        console.print(f"{phase}: {tally.cases:,} cases, {dict(tally.statuses)}")
    return tallies


def say(console: Console, text: str) -> None:
    """Print a text as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def report(tallies: dict[str, Tally], console: Console) -> int:
    """Print the table and the failures; return their number."""
    table = Table("phase", "operations", "cases", "statuses", "failures", "errors")
    for phase, tally in tallies.items():
        statuses = ", ".join(f"{status}: {n:,}" for status, n in sorted(tally.statuses.items()))
        counted = f"{tally.cases:,}", statuses, str(len(tally.failures)), str(len(tally.errors))
        table.add_row(phase, str(len(tally.operations)), *counted)
    console.print(table)
    for tally in tallies.values():
        for (label, check, _), text in tally.failures.items():
            say(console, f"\n{label}: {check}\n{text}")
        for error in tally.errors:
            say(console, error)
    return sum(len(each.failures) + len(each.errors) for each in tallies.values())


def main() -> int:
    parser = argparse.ArgumentParser(description="Generated requests to a server.")
    parser.add_argument("--cases", type=int, default=5_000, help="how many at least")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    given = parser.parse_args()
    console = Console()
    console.print(f"--seed={given.seed}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        url = f"embedded:{Path(directory).resolve() / 'db'}"
        with serving(url) as (_, address):
            failures = report(fuzz(address, given.cases, given.seed, console), console)
    console.print(f"{time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
