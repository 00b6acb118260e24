"""One driver a target: plays a scenario on an engine and reports facts."""
