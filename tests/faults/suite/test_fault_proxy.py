"""The proxy of the fault suite, between a real client and a real server."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.proxy import Direction, Proxies, Proxy
from tests.support.waiting import until


class Server(threading.Thread):
    """A server that answers each line with the number of lines so far."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self.lines: list[bytes] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # the test has ended
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    with self._lock:
                        self.lines.append(line)
                    connection.sendall(b"%d\n" % len(self.lines))
        except OSError:  # the proxy has cut the connection
            return

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    server.start()
    yield server
    server.close()


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with Proxies(1) as proxies:
        yield proxies


@pytest.fixture
def proxy(proxies: Proxies, server: Server) -> Proxy:
    return proxies.to(lambda: server.port)


@contextmanager
def connected(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
        yield client


def ask(client: socket.socket, line: bytes = b"line\n") -> bytes:
    client.sendall(line)
    return client.recv(100)


def test_it_forwards_both_directions(proxy: Proxy) -> None:
    with connected(proxy) as client:
        assert [ask(client), ask(client)] == [b"1\n", b"2\n"]


def test_it_delays_answers(proxy: Proxy) -> None:
    proxy.to_client = Direction(delay_s=0.2)
    with connected(proxy) as client:
        began = time.monotonic()
        for _ in range(10):
            ask(client)
        assert time.monotonic() - began > 0.2, "ten delays of up to 0.2 s take longer than one"


def test_a_lost_request_does_not_reach_the_server(proxies: Proxies, proxy: Proxy, server: Server) -> None:
    proxy.to_server = Direction(drops=True)
    with connected(proxy) as client:
        client.sendall(b"lost\n")
        client.settimeout(0.3)
        with pytest.raises(TimeoutError):
            client.recv(100)
        client.settimeout(60)
        proxies.call(proxy.heal)
        with pytest.raises(ConnectionResetError):
            client.recv(100)  # the connection has a gap, so it ends
    assert not server.lines
    with connected(proxy) as client:
        assert ask(client) == b"1\n"


def test_a_lost_answer_belongs_to_a_request_that_was_served(proxy: Proxy, server: Server) -> None:
    proxy.to_client = Direction(drops=True)
    with connected(proxy) as client:
        client.sendall(b"served\n")
        until(lambda: server.lines == [b"served\n"], "the server has the line")


def test_a_cut_ends_connections_and_refuses_new_ones(proxies: Proxies, proxy: Proxy) -> None:
    with connected(proxy) as client:
        ask(client)
        proxy.refuses = True
        proxies.call(proxy.cut)
        with pytest.raises(ConnectionResetError):
            client.recv(100)
    with connected(proxy) as client:
        assert client.recv(100) == b"", "a refused connection ends at once"
    proxies.call(proxy.heal)
    with connected(proxy) as client:
        assert ask(client)


def test_a_repeated_request_reaches_the_server_twice(proxy: Proxy, server: Server) -> None:
    proxy.repeats = 1.0
    with connected(proxy) as client:
        assert ask(client, b"twice\n") == b"1\n", "the client gets the first answer"
        until(lambda: proxy.repeated == 1, "the request is repeated")
    assert server.lines == [b"twice\n", b"twice\n"]
