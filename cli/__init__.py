"""The command line `fdbq`: each command calls one method of the library."""
