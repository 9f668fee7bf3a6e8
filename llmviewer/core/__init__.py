"""Types and checks used by all other packages: errors, number formats, operators, workloads, data files."""
