"""A simulator in virtual time: hundreds of hosts, each with the broker's own decision, over links that change."""
