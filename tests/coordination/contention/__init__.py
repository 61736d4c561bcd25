"""Tests of the transactions that the processes of a host share."""
