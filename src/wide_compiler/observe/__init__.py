"""Observation of workers: instruction log, live monitor, traces and timelines."""
