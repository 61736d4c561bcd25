"""Workers, which claim jobs, call a handler for each and acknowledge them."""
