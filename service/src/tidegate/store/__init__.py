"""Where state lives: the machine of ``tidegate.domain`` as atomic scripts next to the data, and the way there."""
