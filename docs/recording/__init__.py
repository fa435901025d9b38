"""Pictures of the operators' page while the demo runs."""
