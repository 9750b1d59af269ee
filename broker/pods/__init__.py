"""Kubernetes: pods choose their class by an annotation, and their rules are written into the broker's configuration.

A process of its own beside the daemon, `hive-qos pods`: the daemon needs no API server, and works on while there is
none. Pods become rules on cgroups and addresses (`rules`), which are added to a configuration (`merge`); the API
server is watched over HTTPS (`api_server`); `watcher` puts it together.
"""
