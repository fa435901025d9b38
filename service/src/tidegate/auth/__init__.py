"""Authentication and authorisation: keys, roles, quotas, sessions, watermark tokens."""
