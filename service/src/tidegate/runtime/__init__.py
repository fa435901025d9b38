"""What goes on between requests: waking those who wait, moving what only time moves."""
