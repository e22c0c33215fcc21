"""What no request gets past, with a real server."""

import asyncio
import json
import shutil

import pytest

from celrec.service.guard import Guard, Limits
from tests.service.conftest import Server

HEAD = "POST /events HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
EVENT = {"user": "u1", "item": 3, "target": 2}


@pytest.fixture(scope="module")
def server(online_once, tmp_path_factory):
    folder = shutil.copytree(online_once, tmp_path_factory.mktemp("guard") / "online")
    server = Server(folder, "--max-body", "2000")
    yield server
    assert server.stop() == 0
    server.process.stdout.close()
    server.process.stderr.close()


def said(connection):
    """The status and the body of the one answer that comes."""
    data = b""
    while part := connection.recv(65536):
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_a_long_body_is_refused_before_it_is_sent(server):
    with server.connect() as connection:
        connection.sendall(f"{HEAD}Content-Length: 5000000000\r\n\r\n".encode())
        status, told = said(connection)
    assert status == 413
    assert told == {"error": "the body is longer than 2,000 bytes; send it in parts"}


def test_a_long_body_in_chunks_is_refused_when_it_is_too_long(server):
    with server.connect() as connection:
        connection.sendall(f"{HEAD}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent = 0
        try:
            while sent < 1_000_000:
                connection.sendall(b"3e8\r\n" + b" " * 1000 + b"\r\n")
                sent += 1000
        except OSError:  # it hung up
            pass
        try:
            status, _ = said(connection)
        except (OSError, IndexError):
            status = 413  # the answer was lost with the connection
    assert status == 413
    assert server.ask("/healthz")[0] == 200


def test_a_short_body_in_chunks_is_taken(server):
    body = json.dumps({"events": [EVENT]}).encode()
    with server.connect() as connection:
        head = HEAD + "Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        for at in range(0, len(body), 10):
            part = body[at : at + 10]
            connection.sendall(f"{len(part):x}\r\n".encode() + part + b"\r\n")
        connection.sendall(b"0\r\n\r\n")
        status, told = said(connection)
    assert status == 202, told
    assert told["accepted"] == 1


def test_who_goes_away_in_the_middle_of_a_body_harms_nobody(server):
    for _ in range(5):
        with server.connect() as connection:
            connection.sendall(f"{HEAD}Content-Length: 100\r\n\r\nhalf".encode())
    assert server.ask("/healthz")[0] == 200


@pytest.mark.parametrize(
    ("host", "fine"),
    [
        ("127.0.0.1:8000", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8000", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8000", False),
        ("[::2]", False),
        ("", False),
    ],
)
def test_on_loopback_the_host_must_be_this_machine(server, host, fine):
    with server.connect() as connection:
        connection.sendall(
            f"GET /healthz HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode()
        )
        status, _ = said(connection)
    assert status == (200 if fine else 421)


def test_answers_keep_browsers_from_running_what_is_not_ours(server):
    with server.connect() as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        data = b""
        while part := connection.recv(65536):
            data += part
    head = data.partition(b"\r\n\r\n")[0].decode().lower()
    assert "script-src 'self';" in head
    assert "frame-ancestors 'none'" in head
    assert "x-content-type-options: nosniff" in head
    assert "access-control-allow-origin" not in head
    assert "unsafe" not in head


def test_a_body_that_does_not_come_in_time_is_refused():
    async def nobody(*_):
        raise AssertionError("it got past")

    async def idle_time():
        await asyncio.sleep(60)

    sent, counted = [], []

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "headers": [(b"content-type", b"application/json; charset=utf-8")],
    }
    guard = Guard(
        nobody,
        Limits(body_seconds=0.05),
        loopback=False,
        answered=lambda *told: counted.append(told[:2]),
    )
    asyncio.run(guard(scope, idle_time, send))
    assert sent[0]["status"] == 408
    assert json.loads(sent[1]["body"])["error"].startswith("the body did not come in time")
    assert counted == [("other", 408)]
