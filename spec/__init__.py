"""The executable reference specification: pure functions on integers and on Z3 terms."""
