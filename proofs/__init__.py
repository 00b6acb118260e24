"""Theorems about the specification, and their proofs."""
