"""A shop's orders: charged, booked, shipped or refunded, and reported, whatever dies meanwhile.

| file | has |
| --- | --- |
| `app.py` | The queues with their limits, and what each worker process opens |
| `tables.py` | The tables of the SQL database, with which jobs commit |
| `bank.py` | A bank that can be called again |
| `orders.py` | The path of an order, and what undoes each step |
| `mails.py` | A fair share of a limited service for each customer |
| `statements.py` | The jobs of each night, and the job after the last of them |
| `web.py` | The requests that push, cancel and look |

Run it in a clone, after `pip install -e '.[server,sqlalchemy]'`:

    export FDBQ_DB=embedded:queues
    fdbq deploy --app recipes.orders_pipeline:app
    fdbq work --app recipes.orders_pipeline:app --processes 2 &
    uvicorn recipes.orders_pipeline.web:api &
    curl -X PUT localhost:8000/orders/1 --json '{"customer": "ada@example.com", "cents": 1200}'
    curl -X POST localhost:8000/orders/1/parcel --json '{"tracking": "1Z999"}'
    curl localhost:8000/orders/1
"""

from recipes.orders_pipeline import mails, orders, statements
from recipes.orders_pipeline.app import app

__all__ = ["app", "mails", "orders", "statements"]
