"""Who may change what the service knows."""

import pytest

from celrec.errors import CelrecError
from celrec.service.app import is_loopback, serve
from celrec.service.guard import ApiKey

SECRET = "correct horse battery"  # noqa: S105
EVENT = {"events": [{"user": "u1", "item": 3, "target": 2}]}


def test_events_take_the_key_and_reading_does_not(online, inside):
    with inside(online, key=ApiKey(SECRET)) as server:
        for headers in (None, {"X-API-Key": "guess"}, {"X-API-Key": SECRET + "x"}):
            status, told = server.ask("/events", EVENT, headers)
            assert status == 401
            assert "X-API-Key" in told["error"]
            assert SECRET not in told["error"]
        assert server.ask("/events", EVENT, {"X-API-Key": SECRET})[0] == 202
        assert server.ask("/recommend?user=u1")[0] == 200
        assert server.ask("/healthz")[1]["needs_key"] is True


def test_strange_keys_are_refused_and_not_a_5xx(online, inside):
    with inside(online, key=ApiKey(SECRET)) as server:
        for given in (b"\xff\xfe", b"", b"\xc3\xa9" * 100):
            assert server.ask("/events", EVENT, {b"X-API-Key": given})[0] == 401


def test_beyond_loopback_it_does_not_listen_without_a_key(online):
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):  # noqa: S104
        with pytest.raises(CelrecError, match="needs an API key") as told:
            serve(online, host, 0)
        assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104
        ("", False),
        ("127.0.0.1.example.org", False),
        ("10.0.0.1", False),
    ],
)
def test_loopback_is_what_only_this_machine_can_reach(host, local):
    assert is_loopback(host) is local


def test_the_key_comes_from_a_file_or_the_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("CELREC_API_KEY", raising=False)
    assert ApiKey.found(None) is None
    monkeypatch.setenv("CELREC_API_KEY", "of the environment\n")
    assert ApiKey.found(None).fits("of the environment")
    file = tmp_path / "key"
    file.write_text(SECRET + "\n")
    assert ApiKey.found(file).fits(SECRET)


@pytest.mark.parametrize("content", [b"", b"short", b"two\nlines of it", "schlüssel!".encode()])
def test_a_key_that_is_none_is_told_without_showing_it(tmp_path, content):
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(CelrecError, match="API key") as told:
        ApiKey.found(file)
    assert "lines" not in str(told.value)
    with pytest.raises(CelrecError, match="cannot read"):
        ApiKey.found(tmp_path / "nowhere")


def test_the_environment_variable_may_not_be_empty(monkeypatch):
    monkeypatch.setenv("CELREC_API_KEY", "")
    with pytest.raises(CelrecError, match="8 characters"):
        ApiKey.found(None)
