"""Who may call the coordinator, and what for."""
