"""Whatever is sent, the answer is one line with a 4xx."""

import json
import shutil

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from celrec.service.app import make_app
from celrec.service.guard import Limits
from celrec.service.service import Service

GOOD = {"user": "u1", "item": 3, "target": 2}


@pytest.fixture(scope="module")
def served(online_once, tmp_path_factory):
    folder = shutil.copytree(online_once, tmp_path_factory.mktemp("bad") / "online")
    app = make_app(Service(folder), Limits(), loopback=False)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def is_one_line(answer):
    assert 400 <= answer.status_code < 500, answer.text
    told = answer.json()
    assert set(told) == {"error"}
    assert told["error"]
    assert "\n" not in told["error"]
    return told["error"]


def post(client, path, text):
    return client.post(path, content=text, headers={"content-type": "application/json"})


@pytest.mark.parametrize(
    ("event", "told"),
    [
        ({"item": 3, "target": 1}, "events.0.user: Field required"),
        ({**GOOD, "user": None}, "64-bit integer, or a string"),
        ({**GOOD, "user": True}, "64-bit integer, or a string"),
        ({**GOOD, "user": 1.5}, "64-bit integer, or a string"),
        ({**GOOD, "user": 2**63}, "64-bit integer, or a string"),
        ({**GOOD, "user": -(2**63) - 1}, "64-bit integer, or a string"),
        ({**GOOD, "user": 10**5000}, ""),
        ({**GOOD, "user": ""}, "64-bit integer, or a string"),
        ({**GOOD, "user": "x" * 513}, "64-bit integer, or a string"),
        ({**GOOD, "user": "a\x00b"}, "without NUL"),
        ({**GOOD, "user": "\ud800"}, "64-bit integer, or a string"),
        ({**GOOD, "user": ["u1"]}, "64-bit integer, or a string"),
        ({**GOOD, "item": {"id": 3}}, "events.0.item"),
        ({**GOOD, "target": None}, "target: is missing, and the run learns ratings"),
        ({**GOOD, "target": float("nan")}, "finite"),
        ({**GOOD, "target": float("inf")}, "finite"),
        ({**GOOD, "target": 1e300}, "less than or equal to 1000000"),
        ({**GOOD, "target": "five"}, "events.0.target"),
        ({**GOOD, "timestamp": 2**63}, "events.0.timestamp"),
        ({**GOOD, "timestamp": 1.5}, "events.0.timestamp"),
        ({**GOOD, "timestamp": "yesterday"}, "events.0.timestamp"),
        ({**GOOD, "columns": {"shop": "north"}}, "'shop' is not a column of this run"),
        ({**GOOD, "extra": 1}, "events.0.extra"),
    ],
)
def test_an_event_that_cannot_be_learned_is_refused(served, event, told):
    try:
        text = json.dumps({"events": [event]})
    except ValueError:  # Python itself limits how long integers may be
        text = '{"events": [{"user": ' + "1" * 6000 + ', "item": 3, "target": 2}]}'
    assert told in is_one_line(post(served, "/events", text))


@pytest.mark.parametrize("path", ["/events", "/score", "/recommend"])
@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"7",
        b'"events"',
        b"\xff\xfe",
        b'{"events": []}',
        b'{"pairs": []}',
        b'{"users": []}',
        b"[" * 500_000,
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"events": [{"user": NaN}]}',
        b'{"users": [1], "k": 0}',
        b'{"users": [1], "k": 1e99}',
        b'{"users": [1], "k": 100000000000000000000}',
        b'{"users": [1], "allowed": []}',
        b'{"users": ["\\udfff"], "k": 3}',
    ],
)
def test_a_body_that_is_not_what_is_expected_is_refused(served, path, text):
    is_one_line(post(served, path, text))


@pytest.mark.parametrize(
    "path",
    [
        "/recommend",
        "/recommend?user=",
        "/recommend?user=1&k=0",
        "/recommend?user=1&k=1001",
        "/recommend?user=1&k=many",
        "/recommend?user=1&with_seen=perhaps",
        "/recommend?user=%00",
        f"/recommend?user={'9' * 600}",
        "/recommend?user=1&allowed=",
        "/similar?item=nothing",
        "/similar?item=%ED%A0%80",
        "/explain?item=3&neighbours=-1",
        "/explain?item=3&user=",
        "/clusters/-1",
        "/clusters/99999999999999999999",
        "/clusters/0?start=-1",
        "/clusters/0?count=5000",
        "/search?side=nobody",
        "/search?count=0",
        "/nowhere",
    ],
)
def test_a_question_that_cannot_be_answered_is_refused(served, path):
    is_one_line(served.get(path))


def test_too_many_events_pairs_or_users_are_refused(served):
    for path, body in (
        ("/events", {"events": [{"user": 1, "item": 1}] * 10_001}),
        ("/score", {"pairs": [{"user": 1, "item": 1}] * 10_001}),
        ("/recommend", {"users": [1] * 1_001}),
    ):
        answer = post(served, path, json.dumps(body))
        assert answer.status_code == 422
        assert "should have at most" in is_one_line(answer)


def test_a_wrong_content_type_is_refused_so_that_no_form_of_another_page_can_send_it(served):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp"):
        answer = served.post("/events", content=b"{}", headers={"content-type": kind})
        assert answer.status_code == 415
        is_one_line(answer)


def test_other_methods_are_refused(served):
    for method, path in (("DELETE", "/events"), ("PUT", "/recommend"), ("GET", "/events")):
        headers = {"content-type": "application/json"}
        answer = served.request(method, path, headers=headers)
        assert answer.status_code == 405
        is_one_line(answer)


def test_nothing_of_a_request_with_one_bad_event_is_taken(served):
    before = served.get("/metrics").text
    body = {"events": [GOOD, GOOD, {**GOOD, "target": None}]}
    assert "events.2.target" in is_one_line(post(served, "/events", json.dumps(body)))
    waiting = [line for line in before.splitlines() if line.startswith("celrec_events_accepted_t")]
    after = served.get("/metrics").text.splitlines()
    assert waiting[0] in after


# Whatever JSON there is, with the names that matter, nothing but a 4xx or a good answer comes.
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["user", "item", "target", "events", "pairs", "users", "k", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(body=values, path=st.sampled_from(["/events", "/score", "/recommend"]))
def test_no_json_whatsoever_is_answered_with_a_5xx(served, body, path):
    answer = post(served, path, json.dumps(body))
    assert answer.status_code < 500, (body, answer.text)


@given(text=st.text(st.characters(codec="utf-8"), max_size=20))
def test_no_text_in_a_question_is_answered_with_a_5xx(served, text):
    for path, name in (("/recommend", "user"), ("/similar", "item"), ("/explain", "item")):
        assert served.get(path, params={name: text}).status_code < 500
    assert served.get("/search", params={"text": text, "side": "users"}).status_code < 500
