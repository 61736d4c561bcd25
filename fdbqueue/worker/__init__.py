"""Workers: claim a job, call its handler, acknowledge it."""
