"""Types and checks that every other room uses: errors, number formats, operators, workloads, data files."""
