"""The files for Docker, as far as they can be checked without it."""

from __future__ import annotations

import re
from pathlib import Path

DOCKER = Path(__file__).parent.parent / "docker"


def test_compose_builds_no_image_each_time_that_fdbq_runs() -> None:
    text = (DOCKER / "compose.yaml").read_text()
    (service,) = re.findall(r"^  fdbq:\n((?:    .*\n)+)", text, re.M)
    assert "pull_policy: never" in service, "what a build prints goes to standard output"


def test_the_user_of_the_image_is_a_number() -> None:
    (user,) = re.findall(r"^USER (\S+)$", (DOCKER / "Dockerfile").read_text(), re.M)
    assert user.isdigit(), "Kubernetes' runAsNonRoot refuses a name"
    assert int(user) > 0
