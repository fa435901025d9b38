"""The demo: the flights of 2013, replayed in the order of their landings and counted by the hour of their take-off."""
