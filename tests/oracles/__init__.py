"""Plain numpy and rational computations by definition; they import nothing of otimes."""
