"""Checks before a transition: bounds, rates, and turns of groups."""
