"""The demo: the flights of 2013 in the order they landed, counted by the hour they took off."""
