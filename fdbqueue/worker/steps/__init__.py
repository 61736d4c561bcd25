"""The steps of a job, each of which is done once."""
