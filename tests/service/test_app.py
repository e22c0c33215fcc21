"""What the endpoints answer, against what the library answers."""

import time

import pytest
from fastapi.testclient import TestClient

from celrec.inference.explanation import Explainer
from celrec.inference.top_items import TopItems
from celrec.runs.online_run import OnlineRun
from celrec.runs.run_folder import load_run
from celrec.service.app import make_app
from celrec.service.guard import Limits
from celrec.service.service import Service


@pytest.fixture
def served(online):
    with TestClient(make_app(Service(online), Limits(), loopback=False)) as client:
        yield client


@pytest.fixture(scope="module")
def trained(offline_once):
    with TestClient(make_app(Service(offline_once), Limits(), loopback=False)) as client:
        yield client


def learn(client, *events):
    answer = client.post("/events", json={"events": list(events)})
    assert answer.status_code == 202, answer.text
    deadline = time.monotonic() + 20
    while client.get("/healthz").json()["learned"] < answer.json()["last"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def pairs(answers):
    return [(one["item"], pytest.approx(one["score"], abs=1e-5)) for one in answers]


def test_recommendations_are_those_of_the_library(trained, offline_once):
    run = load_run(offline_once, seen=True)
    top = TopItems(run)
    for user in (0, 7, 39, 1000):
        for with_seen in (False, True):
            expected = top.recommend([user], 6, with_seen=with_seen)
            answer = trained.get(f"/recommend?user={user}&k=6&with_seen={with_seen}").json()
            rows = list(zip(expected["item"].to_list(), expected["score"].to_list(), strict=True))
            assert rows == pairs(answer["items"])
            assert answer["user"] in (user, str(user))
            assert answer["known"] == (user < 1000)


def test_many_users_get_what_each_gets_alone_and_integers_are_texts(trained):
    many = trained.post("/recommend", json={"users": [3, "5", 3, "nobody"], "k": 4}).json()
    for given, together in zip([3, 5, 3, "nobody"], many["users"], strict=True):
        alone = trained.get(f"/recommend?user={given}&k=4").json()
        rows = [(one["item"], one["score"]) for one in together["items"]]
        assert rows == pairs(alone["items"])  # of products of other shapes
        assert together["user"] == given


def test_only_allowed_items_and_no_banned_ones_are_recommended(trained):
    allowed = trained.get("/recommend?user=1&with_seen=true&allowed=3&allowed=4&allowed=x").json()
    assert {one["item"] for one in allowed["items"]} == {3, 4}
    body = {"users": [1], "with_seen": True, "k": 30, "banned": [3, "4", "x"]}
    banned = trained.post("/recommend", json=body).json()["users"][0]
    assert {one["item"] for one in banned["items"]} == set(range(30)) - {3, 4}
    none = trained.get("/recommend?user=1&allowed=x")
    assert none.status_code == 422
    assert "none of these items is known" in none.json()["error"]


def test_similar_items_and_reasons_are_those_of_the_library(trained, offline_once):
    run = load_run(offline_once, seen=True)
    expected = TopItems(run).similar([7], 5)
    answer = trained.get("/similar?item=7&k=5").json()
    rows = list(zip(expected["similar"].to_list(), expected["score"].to_list(), strict=True))
    assert rows == pairs(answer["items"])
    why = Explainer(run).explain(7, user=1)
    told = trained.get("/explain?item=7&user=1").json()
    assert told["cluster"] == why.cluster
    assert told["text"] == why.text()
    assert [one["item"] for one in told["shared"]] == [one.item for one in why.shared]


def test_scores_are_those_of_recommendations(trained):
    answer = trained.get("/recommend?user=2&k=30&with_seen=true").json()["items"]
    asked = {"pairs": [{"user": 2, "item": one["item"]} for one in answer]}
    scores = trained.post("/score", json=asked).json()["scores"]
    assert scores == pytest.approx([one["score"] for one in answer], abs=1e-5)
    unseen = trained.post("/score", json={"pairs": [{"user": "?", "item": "?"}]}).json()
    assert len(unseen["scores"]) == 1


def test_clusters_hold_all_items_and_their_members_come_in_pages(trained):
    clusters = trained.get("/clusters").json()["clusters"]
    assert sum(one["members"] for one in clusters) == 30
    for one in clusters:
        found, start = [], 0
        while len(found) < one["members"]:
            page = trained.get(f"/clusters/{one['cluster']}?start={start}&count=4").json()
            assert page["total"] == one["members"]
            found += [member["id"] for member in page["members"]]
            start += 4
        assert len(set(found)) == one["members"]
    assert trained.get("/clusters/77").status_code == 404
    assert trained.get("/clusters?side=prices").status_code == 404
    users = trained.get("/clusters?side=users")
    assert (users.status_code, users.json()["error"]) == (
        404,
        "the users are not clustered; request another side",
    )


def test_clusters_of_items_without_titles_show_their_ids(make_offline, tmp_path, inside):
    titles = [None if number % 2 else f"film {number}" for number in range(30)]
    with inside(make_offline(tmp_path / "titled", titles=titles)) as served:
        clusters = served.ask("/clusters")[1]["clusters"]
        names = {name for one in clusters for name in one["examples"]}
        assert len(names) == sum(min(one["members"], 5) for one in clusters)
        assert names <= {title or str(number) for number, title in enumerate(titles)}
        assert any(name.isdigit() for name in names)


def test_ids_are_found_by_a_part_of_them_the_exact_one_first(served):
    found = served.get("/search?side=users&text=U1&count=20").json()["found"]
    assert {one["id"] for one in found} == {"u1", *(f"u{number}" for number in range(10, 20))}
    exact = served.get("/search?side=users&text=u1&count=3").json()["found"]
    assert exact[0]["id"] == "u1"
    counts = [one["interactions"] for one in exact[1:]]
    assert counts == sorted(counts, reverse=True)
    assert len(served.get("/search?side=items").json()["found"]) == 10


def test_events_are_learned_with_new_ids_and_what_was_seen_is_not_recommended(served):
    assert served.get("/recommend?user=new").json()["known"] is False
    learn(served, *({"user": "new", "item": item, "target": 5} for item in (0, 1, "fresh")))
    told = served.get("/recommend?user=new&k=40").json()
    assert told["known"] is True
    items = {one["item"] for one in told["items"]}
    assert not items & {"0", "1", "fresh", 0, 1}
    assert "fresh" in {
        one["item"] for one in served.get("/recommend?user=u1&k=40&with_seen=true").json()["items"]
    }
    assert served.get("/similar?item=fresh").status_code == 200
    assert served.get("/healthz").json()["events"] == 2_003


def test_anoffline_once_run_takes_no_events_and_says_what_does(trained):
    answer = trained.post("/events", json={"events": [{"user": 1, "item": 1, "target": 1}]})
    assert answer.status_code == 409
    assert "celrec online" in answer.json()["error"]
    assert "--new" in answer.json()["error"]


def test_when_the_service_stops_all_is_in_a_checkpoint_and_the_source_is_where_it_was(online):
    with TestClient(make_app(Service(online), Limits(), loopback=False)) as client:
        client.post("/events", json={"events": [{"user": "x", "item": 3, "target": 2}] * 7})
    with OnlineRun.resume(online) as run:
        assert (run.events, run.journal, run.offset) == (2_007, 7, None)


def test_metrics_tell_of_requests_events_and_versions(served):
    learn(served, {"user": "x", "item": 3, "target": 2})
    served.get("/recommend?user=u1")
    served.get("/recommend?k=0")
    text = served.get("/metrics").text
    assert 'celrec_requests_total{path="/recommend",status="200"} 1.0' in text
    assert 'celrec_requests_total{path="/recommend",status="422"} 1.0' in text
    assert "celrec_events_accepted_total 1.0" in text
    assert "celrec_events_learned 1.0" in text
    assert "celrec_events_waiting 0.0" in text


def test_health_tells_the_version(served):
    before = served.get("/healthz").json()
    assert (before["status"], before["kind"], before["version"]) == ("ok", "online", 1)
    learn(served, {"user": "x", "item": 3, "target": 2})
    assert served.get("/healthz").json()["version"] == 2


def test_answers_have_the_number_of_one_version(served):
    learn(served, {"user": "x", "item": 3, "target": 2})
    number = served.get("/healthz").json()["version"]
    for path in ("/recommend?user=x", "/similar?item=3", "/explain?item=3", "/clusters"):
        assert served.get(path).json()["version"] == number
