"""The transition system over the specification: scenarios, facts, the monitor, the reference engine."""
