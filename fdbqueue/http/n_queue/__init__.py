"""The routes of the N-queue: push, pop and views of queues of JSON objects, and their errors."""
