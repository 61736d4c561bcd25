"""Groups of items that share what is taken, and limits of what they may have claimed."""
