"""Kernels on integers and tensors: the frozen model, path sums, error bounds. No symbols."""
