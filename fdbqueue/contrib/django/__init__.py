"""A backend of Django's tasks, whose tasks are jobs in queues of fdbqueue.

`docs/howto/django.md` has the settings. `python manage.py fdbqueue_work` runs the tasks.
"""

from fdbqueue.contrib.django.backend import FdbqueueBackend
from fdbqueue.contrib.django.declared import options
from fdbqueue.contrib.django.outbox import Outbox

__all__ = ["FdbqueueBackend", "Outbox", "options"]
