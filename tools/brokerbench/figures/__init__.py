"""Figures of raw records, a function a scenario: pure.

blocks    of a block of steps or seconds, for all; sender, receiver and remote      changing  capacity and jobs
failing   flows, faults and hold               fresh, inbound                         of the scenario of that name
"""
