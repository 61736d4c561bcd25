"""The public interface: queues, their names, checks and imports."""
