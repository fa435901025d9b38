"""The reference's traces, and what drives them through both forms of the machine. See README.md."""
