"""The Django app, which has the command of the worker."""

from django.apps import AppConfig


class FdbqueueConfig(AppConfig):
    """The app `fdbqueue.contrib.django`."""

    name = "fdbqueue.contrib.django"
    label = "fdbqueue"
