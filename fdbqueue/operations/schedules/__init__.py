"""Schedules within a transaction: their grids of ticks, and the pushes at each of them."""
