"""Mutants of the specification, the model, the engines and their kernels: what notices each."""
