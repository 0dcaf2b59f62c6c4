"""The version of helion_rt; hatchling reads it from here."""

__version__ = "0.1.0"
