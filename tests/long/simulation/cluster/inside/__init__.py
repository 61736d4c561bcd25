"""What runs inside the simulator, and only there: it imports the module of the shim."""
