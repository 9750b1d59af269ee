"""`hive-qos ca`: the cluster's own certificate authority, and the certificates of its nodes."""

from broker.cli.ca.certificates import app
from broker.cli.ca.lifecycle import register

register(app)

__all__ = ["app"]
