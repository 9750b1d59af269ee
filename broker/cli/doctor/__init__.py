"""`hive-qos doctor`: one look at the host, its configuration and its broker, with a next step for all that is amiss."""
