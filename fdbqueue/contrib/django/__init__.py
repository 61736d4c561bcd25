"""A backend of Django's tasks, whose tasks are jobs in queues of fdbqueue.

    INSTALLED_APPS = [..., "fdbqueue.contrib.django"]
    TASKS = {
        "default": {
            "BACKEND": "fdbqueue.contrib.django.FdbqueueBackend",
            "OPTIONS": {"database": "embedded:shop"},
        }
    }

`python manage.py fdbqueue_work` runs the tasks.
"""

from fdbqueue.contrib.django.backend import FdbqueueBackend
from fdbqueue.contrib.django.declared import options
from fdbqueue.contrib.django.outbox import Outbox

__all__ = ["FdbqueueBackend", "Outbox", "options"]
