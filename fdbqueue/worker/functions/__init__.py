"""The surroundings of a program's functions in a worker: an event loop, steps, guards."""
