"""What power cuts, failed writes and slow disks do to an embedded database.

- `shim.py`: record what processes do to a directory, and let their writes and syncs fail or hang
"""
