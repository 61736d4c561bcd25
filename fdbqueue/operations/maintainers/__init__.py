"""The maintainers, which follow the transitions of items; see `transitions.Maintainer`."""
