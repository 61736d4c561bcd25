"""What power cuts, failed writes and slow disks do to an embedded database.

- `shim.py`: record what processes do to a directory, and let their writes and syncs fail or hang
- `crash_model.py`: the states in which a power cut may leave the directory
- `workload.py`: a process that commits, closes and opens when it is told to
- `crash_states.py`: record a run, open states after power cuts, and compare them with what was told

`FDBQ_CRASH_STATES=10000 pytest tests/embedded/test_crash_states.py` opens more of them.
"""
