"""Views of a queue within a transaction: what is over or due is shown as the next sweep leaves it.

No process sweeps a queue by itself. So a lease may be over, a delay may have passed, or an item may
have expired, while its rows still say otherwise. A view reads these timers, which few items have at
a time, and shows every item in the state that it really has. It writes nothing.
"""
