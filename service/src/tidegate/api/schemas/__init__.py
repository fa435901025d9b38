"""Bodies of requests, and answers that no other face shows."""
