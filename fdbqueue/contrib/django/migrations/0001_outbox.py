"""The table of an outbox."""

from django.db import migrations, models


class Migration(migrations.Migration):
    """Create the table."""

    initial = True
    operations = [
        migrations.CreateModel(
            name="OutboxRow",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("token", models.CharField(max_length=32)),
                ("queue", models.CharField(max_length=255)),
                ("push", models.TextField()),
            ],
            options={"db_table": "fdbqueue_outbox"},
        ),
    ]
