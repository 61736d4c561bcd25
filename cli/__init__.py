"""The command line, `fdbq`: one command, one method of the library."""
