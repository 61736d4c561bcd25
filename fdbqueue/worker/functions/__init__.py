"""The functions of a program, as a worker calls them: what each gets, where it runs, how often."""
