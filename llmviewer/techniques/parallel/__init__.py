"""Work shared by several devices."""
