"""How fast kernels run beside the data sheet: one family a file, each a formula with fitted constants."""
