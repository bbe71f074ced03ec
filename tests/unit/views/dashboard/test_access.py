"""Who may look at a dashboard."""

from __future__ import annotations

import pytest

from ftlaunch.views.dashboard.access import Access

TOKEN = "a-token-of-forty-three-characters-or-so"
LOCAL = Access(TOKEN, frozenset({"localhost"}), beyond=False)
OPEN = Access(TOKEN, frozenset({"localhost", "node7", "node7.example.org"}), beyond=True)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:9001", "LOCALHOST", "[::1]:8000", "127.8.9.1:1"])
def test_a_browser_on_this_machine_may_come_through_any_port(host: str) -> None:
    """Also through one that ssh forwards."""
    assert LOCAL.refused("GET", {"host": host}, TOKEN) == ""


@pytest.mark.parametrize(
    "host",
    ["evil.example:8000", "10.0.0.7:8000", "localhost.evil.example", "", "[::1", "127.0.0.1.evil.example", "node7:80",
     "localhost@evil.example"],
)  # fmt: skip
def test_another_name_is_refused(host: str) -> None:
    """DNS rebinding: a name of another site that means 127.0.0.1. Without the look at `host` the token alone counts."""
    assert "is not served under the name" in LOCAL.refused("GET", {"host": host}, TOKEN)


@pytest.mark.parametrize("host", ["node7:8000", "Node7.Example.org", "10.0.0.7:8000", "[fe80::1]:8000", "localhost"])
def test_beyond_this_machine_its_names_and_any_address_are_served(host: str) -> None:
    assert OPEN.refused("GET", {"host": host}, TOKEN) == ""
    assert "is not served under the name" in OPEN.refused("GET", {"host": "evil.example"}, TOKEN)


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:8000.evil.example", "", "x"]
)
def test_a_page_of_another_site_is_refused_for_any_method(origin: str) -> None:
    for method in ("GET", "POST"):
        assert "another site" in LOCAL.refused(method, {"host": "127.0.0.1:8000", "origin": origin}, TOKEN)


def test_a_command_says_its_origin() -> None:
    host = {"host": "127.0.0.1:8000"}
    assert "does not say from which site" in LOCAL.refused("POST", host, TOKEN)
    assert LOCAL.refused("POST", host | {"origin": "http://127.0.0.1:8000"}, TOKEN) == ""


@pytest.mark.parametrize("token", ["", TOKEN[:-1], TOKEN + "x", TOKEN.upper(), "\udc80", "é" * 43])
def test_a_wrong_token_is_refused(token: str) -> None:
    assert "token is missing or wrong" in LOCAL.refused("GET", {"host": "localhost"}, token)


def test_two_dashboards_of_one_host_have_cookies_of_their_own() -> None:
    other = Access(TOKEN[::-1], frozenset(), beyond=False)
    assert LOCAL.cookie != other.cookie
    assert TOKEN not in LOCAL.cookie
