"""Results and their JSON schema, shared by the command line, reports and notebooks."""
