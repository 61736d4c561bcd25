"""What follows the transitions of items, one file each; see `transitions.Maintainer`."""
