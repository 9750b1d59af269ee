"""What every part of hive-qos shares: the error hierarchy and the units. Standard library only."""

__version__ = "0.1.0"
