"""Trackers: services of others that are told of a run, round by round."""
