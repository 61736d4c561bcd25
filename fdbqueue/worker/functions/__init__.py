"""What the functions of a program get from a worker: an event loop, steps, guards."""
