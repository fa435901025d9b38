"""What goes over the wire, in pydantic models: names, units, ranges."""
