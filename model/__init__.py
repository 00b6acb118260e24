"""The transition system over the specification: scenarios, facts, monitor, reference engine."""
