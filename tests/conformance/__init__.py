"""The reference's traces, and the code that plays them on both sides. See README.md."""
