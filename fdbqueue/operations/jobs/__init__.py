"""Schedules, steps and signals of jobs, within a transaction."""
