"""Chips, hosts, links and networks in SI units, and the reader of their spec files."""
