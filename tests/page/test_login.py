"""Logins with keys: what each role sees and may do, and protection against requests from other sites."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import pytest
from fastapi import Request, Response
from playwright.sync_api import Page, expect

from tests.support.api import CONFIG
from tests.support.browser import Visitor
from tidegate.auth import keyring, sessions
from tidegate.auth.roles import Role
from tidegate.auth.sessions import COOKIE
from tidegate_spark.testing import CoordinatorProcess

TOKEN = re.compile(r'name="token" value="([^"]+)"')


@dataclass
class Guarded:
    process: CoordinatorProcess
    file: Path
    keys: dict[str, str]

    def log_in(self, page: Page, role: str, where: str = "/") -> None:
        page.goto(self.process.url + where)
        page.get_by_label("Key").fill(self.keys[role])
        page.get_by_role("button", name="Log in").click()

    @contextmanager
    def client(self, role: str) -> Iterator[httpx.Client]:
        """Return a client that is logged in with a cookie, like a browser."""
        with httpx.Client(base_url=self.process.url, timeout=30) as http:
            form = {"token": self.token(http, "/login"), "key": self.keys[role], "next": "/"}
            answer = http.post("/login", data=form)
            assert answer.status_code == 303, answer.text
            yield http

    @staticmethod
    def token(http: httpx.Client, path: str) -> str:
        found = TOKEN.search(http.get(path).text)
        assert found is not None
        return found.group(1)


@pytest.fixture
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    directory = tmp_path_factory.mktemp("page")
    file = directory / "keys.json"
    keys = {role.value: keyring.create(file, f"key-{role}", role, "mine") for role in Role}
    keys["root"] = keyring.create(file, "root", Role.ADMIN, "")
    with CoordinatorProcess(directory / "data", keys_file=str(file)) as process:
        with httpx.Client(base_url=process.url, headers={"Authorization": f"Bearer {keys['root']}"}) as http:
            for job in ("mine", "mine-too", "yours"):
                http.put(f"/v1/jobs/{job}", json=CONFIG, headers={"If-None-Match": "*"}).raise_for_status()
                body = {"substreams": ["a", "b"], "max_event_times": [1000, 2000]}
                http.post(f"/v1/jobs/{job}:report", json=body).raise_for_status()
        yield Guarded(process, file, keys)
        log = (directory / "data" / "coordinator.log").read_text()
        assert not [key for key in keys.values() if key.split("_", 2)[2] in log]


def test_a_login_exchanges_a_key_for_a_cookie(guarded: Guarded, visitor: Visitor) -> None:
    """Scripts and other sites cannot read the cookie. The login leads to the requested page."""
    page = visitor.window()
    page.goto(f"{guarded.process.url}/jobs/mine?sort=max_event_time")
    expect(page.locator("h1")).to_have_text("Log in")
    page.get_by_label("Key").fill("tdg_000000000000_wrong")
    page.get_by_role("button", name="Log in").click()
    visitor.expect("401")
    expect(page.locator("main .banner.bad")).to_have_text("This key does not exist, or was revoked; use another key.")
    page.get_by_label("Key").fill(guarded.keys["operate"])
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("h1")).to_have_text("mine")
    assert page.url.endswith("/jobs/mine?sort=max_event_time")
    expect(page.locator("#connection")).to_have_text("live")
    [cookie] = page.context.cookies()
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == (COOKIE, True, "Strict")
    assert guarded.keys["operate"] not in cookie["value"] and "tidegate_session" not in page.evaluate("document.cookie")
    expect(page.locator("header")).to_contain_text("key-operate (operate, mine*)")
    page.get_by_role("button", name="Log out").click()
    expect(page.locator("h1")).to_have_text("Log in")
    page.goto(f"{guarded.process.url}/jobs/mine")
    expect(page.locator("h1")).to_have_text("Log in")


def test_a_key_shows_its_jobs_and_the_actions_of_its_role(guarded: Guarded, visitor: Visitor) -> None:
    visitor.expect("403")
    page = visitor.window()
    guarded.log_in(page, "read")
    expect(page.locator("tbody th")).to_have_count(2)
    assert set(page.locator("tbody th").all_inner_texts()) == {"mine", "mine-too"}
    page.get_by_role("link", name="mine", exact=True).click()
    expect(page.locator("#connection")).to_have_text("live")
    assert page.locator("a[href*='/act/']").count() == 0
    for address in ("/jobs/yours", "/jobs/none-of-mine-or-so", "/jobs/mine/act/evict?query=&substream=a"):
        page.goto(guarded.process.url + address)
        expect(page.locator("h1")).to_have_text(re.compile("not allowed"))
    page = visitor.window()
    guarded.log_in(page, "report", "/jobs/mine")
    verbs = page.locator("tbody tr").first.locator("a[href*='/act/']")
    expect(verbs).to_have_text(["Declare idle…", "Mark as done…"])
    page = visitor.window()
    guarded.log_in(page, "operate", "/jobs/mine")
    verbs = page.locator("tbody tr").first.locator("a[href*='/act/']")
    expect(verbs).to_have_text(["Declare idle…", "Mark as done…", "Evict…"])
    expect(page.locator("#headline a[href*='/act/']")).to_have_text(["Hold watermark…", "Complete job…"])
    page.goto(f"{guarded.process.url}/jobs/mine/act/idle?query=&substream=b")
    page.get_by_label("Reason").fill("whose name is kept")
    page.get_by_role("button", name="Declare idle").click()
    expect(page.locator("#history li.action")).to_contain_text("by key-operate; (whose name is kept)")
    page = visitor.window()
    guarded.log_in(page, "root")
    expect(page.locator("tbody th")).to_have_count(3)
    assert set(page.locator("tbody th").all_inner_texts()) == {"mine", "mine-too", "yours"}


def test_a_link_from_another_site_leads_to_the_page(guarded: Guarded, visitor: Visitor) -> None:
    """The first request from another site carries no strict cookie, and still leads to the page."""
    address = guarded.process.url + "/jobs/mine"

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f'<link rel="icon" href="data:,"><a href="{address}">the alert</a>'.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = visitor.window()
        guarded.log_in(page, "read")
        expect(page.locator("h1")).to_have_text("Jobs")
        page.goto(f"http://localhost:{server.server_port}/")
        page.get_by_role("link", name="the alert").click()
        expect(page.locator("h1")).to_have_text("mine")
    finally:
        server.shutdown()
        server.server_close()


def test_a_form_needs_the_token_of_its_session(guarded: Guarded) -> None:
    """A form is refused if its token is missing, invented or from another session."""
    path = "/jobs/mine/act/evict"
    with guarded.client("operate") as http, guarded.client("operate") as other:
        form = {"query": "", "substream": "a", "reason": "not me"}
        theirs = guarded.token(other, f"{path}?query=&substream=a")
        for token in ("", "0" * 64, theirs):
            answer = http.post(path, data={**form, "token": token})
            assert (answer.status_code, "form expired" in answer.text.lower()) == (403, True)
        assert http.post(path, json={**form, "token": theirs}).status_code == 403
        assert http.post(path, content=b"token=\xff", headers=FORM).status_code == 422
        assert httpx.post(guarded.process.url + path, data=form).status_code == 401
        records = guarded_history(guarded)
        assert "evict" not in [record.get("action") for record in records]
        assert http.post(path, data={**form, "token": guarded.token(http, f"{path}?query=&substream=a")}).is_redirect
        assert guarded_history(guarded)[0]["substreams"] == ["/a"]
        # The limits of a role apply to forms, too.
        with guarded.client("read") as reader:
            token = guarded.token(reader, "/jobs/mine")
            assert reader.post(path, data={**form, "token": token}).status_code == 403


FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def guarded_history(guarded: Guarded) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {guarded.keys['root']}"}
    answer = httpx.get(f"{guarded.process.url}/v1/jobs/mine/history", headers=headers)
    records: list[dict[str, Any]] = answer.json()["records"]
    return [record for record in records if record["kind"] == "action"]


def test_another_site_cannot_log_a_user_in(guarded: Guarded) -> None:
    """Another site could log a user in with a key of its own. The login form belongs to no session, so the origin of
    the request is checked.
    """
    with httpx.Client(base_url=guarded.process.url, timeout=30) as http:
        form = {"token": guarded.token(http, "/login"), "key": guarded.keys["read"], "next": "/"}
        for headers in (
            {"Origin": "http://evil.example"},
            {"Sec-Fetch-Site": "cross-site"},
            {"Origin": "null"},
            {"Sec-Fetch-Site": "same-site"},
            {"Origin": "http://["},
        ):
            answer = http.post("/login", data=form, headers=headers)
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False), headers
        own = {"Origin": guarded.process.url, "Sec-Fetch-Site": "same-origin"}
        assert http.post("/login", data=form, headers=own).status_code == 303


def test_forms_are_validated_like_calls_of_the_api(guarded: Guarded) -> None:
    """A form is refused for the same reasons as a call of the API."""
    with guarded.client("root") as http:
        token = guarded.token(http, "/jobs/yours")

        def refused(verb: str, says: str, **form: str) -> None:
            answer = http.post(f"/jobs/yours/act/{verb}", data={"reason": "r", "token": token, **form})
            assert answer.status_code in (404, 422) and says in answer.text, (verb, answer.status_code)

        refused("retire", "query: ", query="", successor="zz")
        refused("retire", "query: ", query="a b")
        refused("retire", "The job has no query", query="never", successor="zz")
        refused("release", "reason: ", hold="h", reason="y" * 1001)
        refused("release", "hold: ", hold="")
        refused("hold", "is not a duration", at_most="0", lasts="9" * 400 + "d")
        refused("hold", "duration_ms: ", at_most="0", lasts="9" * 30 + "d")
        refused("hold", "at_most: ", at_most=str(2**53))
        refused("evict", "substreams: ", query="", substream="")
        records = httpx.get(
            f"{guarded.process.url}/v1/jobs/yours/history",
            params={"kind": "action"},
            headers={"Authorization": f"Bearer {guarded.keys['root']}"},
        ).json()["records"]
        assert records == []


def test_a_cookie_is_valid_for_the_page_only(guarded: Guarded) -> None:
    """The API takes only keys, so no page of another site can call it."""
    with guarded.client("root") as http:
        assert http.get("/").status_code == 200
        assert http.get("/v1/jobs").status_code == 401
        assert http.get("/metrics").status_code == 401
        key = {"Authorization": f"Bearer {guarded.keys['read']}"}
        metrics = httpx.get(f"{guarded.process.url}/metrics", headers=key).text
        assert 'job_name="mine"' in metrics and "yours" not in metrics


def test_a_cookie_ends(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cookie ends when it is changed, expires, or its key is revoked. Open event streams end, too."""
    name = "to-be-revoked"
    guarded.keys[name] = keyring.create(guarded.file, name, Role.READ, "")
    with httpx.Client(base_url=guarded.process.url, timeout=30) as probe:
        while probe.get("/v1/jobs", headers={"Authorization": f"Bearer {guarded.keys[name]}"}).status_code != 200:
            pass  # until the coordinator has reloaded the keys file
    with guarded.client(name) as http:
        cookie = http.cookies[COOKIE]
        key_id, nonce, signed_at, mac = cookie.split(".")
        later = "z" + signed_at[1:]
        for changed in (
            "",
            "...",
            f"{key_id}.{nonce}.{later}.{mac}",
            f"{key_id}.{nonce}.{signed_at}.{mac[:-1]}",
            f"{'0' * 12}.{nonce}.{signed_at}.{mac}",
            f"{key_id}.{nonce}.{signed_at}.\xe9",
        ):
            answer = httpx.get(guarded.process.url, headers={b"Cookie": f"{COOKIE}={changed}".encode("latin-1")})
            assert answer.headers["location"] == "/login?next=%2F", changed
        after_s = [0.0]
        ended = sessions.Sessions(b"key", keyring.Keyring(guarded.file), lambda: time.time() + after_s[0])
        made, request = (
            Response(),
            Request({"type": "http", "scheme": "https", "path": "/", "headers": [(b"host", b"job")]}),
        )
        [known] = [key for key in keyring.read(guarded.file) if key.name == name]
        ended.open(request, made, known)
        set_cookie = made.headers["set-cookie"]
        assert "; Secure" in set_cookie and "; HttpOnly" in set_cookie
        returning = Request({"type": "http", "headers": [(b"cookie", set_cookie.partition(";")[0].encode())]})
        for seconds, is_open in (
            (0, True),
            (sessions.SESSION_S - 60, True),
            (sessions.SESSION_S + 1, False),
            (-1, True),  # another replica has read the clock of Redis earlier
            (-sessions.MAX_AHEAD_S - 60, False),
        ):
            after_s[0] = seconds
            assert (ended.caller(returning) is not None) == is_open, seconds
        with http.stream("GET", "/jobs/mine/live") as stream:
            lines = stream.iter_lines()
            assert next(lines) == "event: page"
            keyring.revoke(guarded.file, name)
            assert "event: gone" in lines
        assert http.get("/").headers["location"] == "/login?next=%2F"
        assert http.get("/jobs/mine/live").status_code == 401


@pytest.mark.parametrize(
    "where",
    [
        "//evil.example/",
        "/\\evil.example",
        "https://evil.example/jobs/x",
        "javascript:1",
        "https:/jobs/x",
        "x-app:/jobs/x",
        "http://[/",
        "data:/",
        "jobs/x",
        "",
    ],
)
def test_the_login_redirects_only_to_pages_of_this_site(guarded: Guarded, where: str) -> None:
    with httpx.Client(base_url=guarded.process.url, timeout=30) as http:
        form = {"token": guarded.token(http, "/login"), "key": guarded.keys["read"], "next": where}
        assert http.post("/login", data=form).headers["location"] == "/"


def test_other_sites_can_neither_frame_nor_read_the_page(tidegate: CoordinatorProcess) -> None:
    """Even without keys, another site can only link to the page and cannot read it."""
    with httpx.Client(base_url=tidegate.url, timeout=30) as http:
        headers = http.get("/").headers
        policy = headers["content-security-policy"]
        assert "frame-ancestors 'none'" in policy and "unsafe" not in policy and "default-src 'none'" in policy
        assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"
        there = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert http.get("/", headers=there).status_code == 200
        assert http.get("/v1/jobs", headers=there).status_code == 403
        assert http.get("/", headers=there | {"Sec-Fetch-Dest": "iframe"}).status_code == 403
        assert http.get("/", headers=there | {"Sec-Fetch-Mode": "cors"}).status_code == 403
        assert http.post("/jobs/j/act/reset", headers=there | FORM).status_code == 403
        for host in ("evil.example", "[::1].evil.example", "localhost:x@evil.example", "127.0.0.1.evil.example", ""):
            assert http.get("/", headers={"Host": host}).status_code == 421, host
        assert http.get("/static/page.js").headers["x-content-type-options"] == "nosniff"
        assert http.get("/login").headers["location"] == "/"
        assert http.get("/", params={"nmae": "x"}).status_code == 422
        assert http.get("/jobs/j/act/explode").status_code == 404
