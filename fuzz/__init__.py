"""Scenario strategies, engine drivers, campaigns and their reports."""
