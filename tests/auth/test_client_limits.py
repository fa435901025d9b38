"""Limits per client address."""

import pytest
from fastapi import Request

from tidegate.auth.sessions import Sessions
from tidegate.auth.usage import Limit, network


@pytest.mark.parametrize(
    ("address", "limited"),
    [
        ("10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "10.1.2.3"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("::1", "::/64"),
        ("", ""),
    ],
)
def test_an_ipv6_customer_counts_as_one(address: str, limited: str) -> None:
    """IPv6 limits apply to a /64 network, because one customer has at least 2^64 addresses."""
    assert network(address) == limited


def test_a_limit_is_shared_within_a_network() -> None:
    limit = Limit(per_s=0.001, burst=2)
    assert [limit.take(network(f"2001:db8::{n}")) for n in range(3)] == [True, True, False]
    assert not limit.has_room(network("2001:db8::77"))
    assert limit.take(network("2001:db8:0:1::1"))


def test_a_repeated_session_cookie_is_not_used() -> None:
    """Another host of the domain can set a second cookie of the same name, so neither of the two counts."""

    def token(cookies: str) -> str:
        request = Request({"type": "http", "headers": [(b"cookie", cookies.encode())]})
        return Sessions(b"key", None).form_token(request)

    assert token("tidegate_session=a; tidegate_session=b") == token("other=c")
    assert token("tidegate_session=a; other=c") == token("tidegate_session=a") != token("other=c")
