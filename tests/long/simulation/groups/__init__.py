"""What the simulation of groups is made of: states of a queue, what may follow, planted bugs."""
