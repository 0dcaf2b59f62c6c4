"""Every number the README claims, as a command: ``python -m benchmarks.NAME [--json]``."""
