"""Bodies of requests and answers that only the API uses."""
