"""The alerts of the guide, by Prometheus' own tool."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs/howto/observability.md"

# Series from minute to minute: how they begin, then the step and the number of steps.
SERIES = {
    'fdbqueue_items_died_total{queue="mail"}': "0+0x20 1+0x20",
    'fdbqueue_oldest_item_age_seconds{queue="mail"}': "600+0x20 601+0x20",
    'fdbqueue_unknown_jobs{queue="mail"}': "0+0x20 1+0x20",
    'fdbqueue_jobs_total{queue="mail",job="send",outcome="done"}': "0+9x20 189+7x20",
    'fdbqueue_jobs_total{queue="mail",job="send",outcome="dead"}': "0+1x20 21+3x20",
}
LABELS = {"queue": "mail"}
ALERTS = {
    "JobsDied": ("22m", LABELS),
    "JobsWaitTooLong": ("27m", LABELS),
    "UnknownJobs": ("22m", LABELS),
    "JobsFail": ("35m", LABELS | {"job": "send"}),
}


def test_the_alerts_of_the_guide_fire_when_they_should(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool, which comes with Prometheus")
    (rules,) = re.findall(r"```yaml\n(groups:.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "rules.yml").write_text(rules)
    names = re.findall(r"- alert: (\w+)", rules)
    assert names == [*ALERTS]
    tests = []
    for name, (fires_at, labels) in ALERTS.items():
        (summary,) = re.findall(rf"- alert: {name}\n.*?summary: \"?(.*?)\"?}}", rules, re.DOTALL)
        alert = {"exp_labels": labels, "exp_annotations": {"summary": summary}}
        tests += [
            {"alertname": name, "eval_time": "20m", "exp_alerts": []},
            {"alertname": name, "eval_time": fires_at, "exp_alerts": [alert]},
        ]
    test = {
        "interval": "1m",
        "input_series": [{"series": each, "values": SERIES[each]} for each in SERIES],
        "alert_rule_test": tests,
    }
    # Every JSON file is one of YAML.
    (tmp_path / "test.yml").write_text(json.dumps({"rule_files": ["rules.yml"], "tests": [test]}))
    done = subprocess.run(
        [promtool, "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
