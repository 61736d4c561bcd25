"""The table of an outbox."""

from __future__ import annotations

from django.db import models

from fdbqueue.contrib.outbox import TABLE


class OutboxRow(models.Model):
    """A job or task that is to be pushed once its transaction has committed."""

    id: models.BigAutoField[int, int] = models.BigAutoField(primary_key=True)
    token: models.CharField[str, str] = models.CharField(max_length=32)
    queue: models.CharField[str, str] = models.CharField(max_length=255)
    push: models.TextField[str, str] = models.TextField()

    class Meta:
        """The name of the table."""

        db_table = TABLE
