"""A shop's orders: charged, booked, shipped or refunded, and reported, whatever dies meanwhile.

| file | answers |
| --- | --- |
| `app.py` | What is declared: the queues with their limits, and what each worker process opens? |
| `tables.py` | What is in the SQL database, and how do jobs commit with it? |
| `bank.py` | What does an API need so that it can be called again? |
| `orders.py` | What happens to an order, and what undoes it? |
| `mails.py` | How does each customer get a fair share of a limited service? |
| `statements.py` | What runs each night, and what runs once all of it has ended? |
| `web.py` | How do requests push, cancel and look? |

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
