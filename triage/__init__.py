"""Triage: from a failing log or scenario to the shortest true story about it."""
