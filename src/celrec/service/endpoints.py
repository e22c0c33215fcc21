"""The endpoints of the HTTP API. Their docstrings and types become the OpenAPI schema."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Protocol, TypeVar

import polars as pl
from fastapi import FastAPI, Path, Query, Response
from pydantic import BaseModel

from celrec.errors import CelrecError
from celrec.inference.codes import table_of_level
from celrec.inference.explanation import cluster_table
from celrec.service import messages as m
from celrec.service.guard import UnknownError
from celrec.service.messages import Cluster, Clusters, IdInfo, Members, SearchResult
from celrec.service.metrics import Metrics
from celrec.service.service import Service
from celrec.service.version import Version

_T = TypeVar("_T")
_MOST_IN_ADDRESS = 50  # ids in a query string, since addresses must be short; POST takes more

Side = Annotated[
    str, Query(max_length=200, description="items, users, or the name of a further id column.")
]
Level = Annotated[
    int,
    Query(ge=1, le=64, description="Which level, where vectors are sums of rows of several."),
]
Count = Annotated[int, Query(ge=1, le=1_000)]


class RunInThread(Protocol):
    """Runs a function in a worker thread; a `brief` one runs in the event loop at once."""

    def __call__(self, work: Callable[[], _T], *, brief: bool = False) -> Awaitable[_T]:
        """Return the result of `work`."""


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The declaration of error responses."""
    return {status: {"model": m.Problem} for status in statuses}


def add_event_endpoints(app: FastAPI, service: Service, metrics: Metrics) -> None:
    """POST /events."""

    @app.post(
        "/events",
        response_model=m.Accepted,
        responses=problems(401, 409, 503, 507),
        status_code=202,
        openapi_extra={"security": [{"key": []}]},  # checked by Guard, before the body is read
    )
    async def events(batch: m.EventBatch) -> Response:
        """Accept events: on disk when the answer comes, learned within about a second."""
        accepted = await service.take(batch.events)
        metrics.events.inc(accepted.accepted)
        return _response(accepted, status=202)


def add_prediction_endpoints(app: FastAPI, service: Service, in_thread: RunInThread) -> None:
    """/score, /recommend, /similar and /explain."""

    @app.post("/score")
    async def score(batch: m.PairBatch) -> m.Scores:
        """Predictions for pairs of a user and an item."""
        version = service.current
        return await in_thread(lambda: version.score(batch.pairs))

    @app.get("/recommend", response_model=m.Recommended)
    async def recommend(
        user: Annotated[m.Text, Query()],
        k: Annotated[m.Many, Query()] = 10,
        with_seen: bool = False,
        allowed: Annotated[list[m.Text] | None, Query(max_length=_MOST_IN_ADDRESS)] = None,
        banned: Annotated[list[m.Text] | None, Query(max_length=_MOST_IN_ADDRESS)] = None,
    ) -> Response:
        """The best items for a user, without items that the user has seen."""
        version = service.current
        request = m.RecommendRequest.model_construct(
            users=[user], k=k, with_seen=with_seen, allowed=allowed, banned=banned
        )
        brief = version.brief and not (allowed or banned)
        answer = await in_thread(lambda: version.recommend(request), brief=brief)
        return _response(answer.users[0])

    @app.post("/recommend", response_model=m.RecommendedToMany)
    async def recommend_to_many(request: m.RecommendRequest) -> Response:
        """The best items for several users."""
        version = service.current
        return await in_thread(lambda: _response(version.recommend(request)))

    @app.get("/similar", responses=problems(404))
    async def similar(
        item: Annotated[m.Text, Query()], k: Annotated[m.Many, Query()] = 10
    ) -> m.Similar:
        """The most similar items: those of the same cluster, then those of the nearest clusters."""
        version = service.current
        return await in_thread(lambda: version.similar(item, k))

    @app.get("/explain", responses=problems(404))
    async def explain(
        item: Annotated[m.Text, Query()],
        user: Annotated[m.Text | None, Query()] = None,
        neighbours: Annotated[int, Query(ge=0, le=100)] = 5,
    ) -> m.Explained:
        """The cluster of an item and its other members; for a user, also the score."""
        version = service.current
        return await in_thread(lambda: version.explain(item, user, neighbours))


def add_listing_endpoints(app: FastAPI, service: Service, in_thread: RunInThread) -> None:
    """/clusters and /search."""

    @app.get("/clusters", responses=problems(404))
    async def clusters(side: Side = "items", level: Level = 1) -> m.Clusters:
        """The clusters of a level and their most active members, highest mean target first."""
        version = service.current
        return await in_thread(lambda: clusters_of(version, side, level))

    @app.get("/clusters/{cluster}", responses=problems(404))
    async def cluster(
        cluster: Annotated[int, Path(ge=0, lt=2**31)],
        side: Side = "items",
        level: Level = 1,
        start: Annotated[int, Query(ge=0, lt=2**31)] = 0,
        count: Count = 50,
    ) -> m.Members:
        """A page of the members of a cluster, the most active first."""
        version = service.current
        return await in_thread(lambda: members_of(version, side, level, cluster, start, count))

    @app.get("/search", responses=problems(404))
    async def search(
        side: Side = "items",
        text: Annotated[str, Query(max_length=200)] = "",
        count: Annotated[int, Query(ge=1, le=100)] = 10,
    ) -> m.SearchResult:
        """Ids that contain a text in the id or the title, the most active first; all if empty."""
        version = service.current
        return await in_thread(lambda: search_ids(version, side, text, count))


def add_status_endpoints(
    app: FastAPI, service: Service, metrics: Metrics, *, needs_key: bool
) -> None:
    """/healthz and /metrics."""

    @app.get("/healthz")
    async def healthz() -> m.Health:
        """The state of the service, and the version of the model that answers."""
        return service.health(needs_key=needs_key)

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Metrics in the text format of Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _response(answer: BaseModel, status: int = 200) -> Response:
    return Response(answer.model_dump_json(), status, media_type="application/json")


_EXAMPLES = 5


def clusters_of(version: Version, side: str, level: int = 1) -> Clusters:
    """All clusters of a level of a side, sorted by mean target, highest first."""
    table = cluster_table(_clustered(version, side, level), _EXAMPLES)
    clusters = [Cluster.model_construct(**row) for row in table.iter_rows(named=True)]
    return Clusters.model_construct(version=version.number, side=side, clusters=clusters)


def members_of(
    version: Version, side: str, level: int, cluster: int, start: int, count: int
) -> Members:
    """A page of the members of a cluster of a level, the most active first."""
    table = _clustered(version, side, level).filter(pl.col("cluster") == cluster)
    if not len(table):
        raise UnknownError(f"cluster {cluster} does not exist; GET /clusters lists all of them")
    page = table.sort("interactions", descending=True, maintain_order=True)[start : start + count]
    return Members.model_construct(
        version=version.number, side=side, cluster=cluster, total=len(table), members=_infos(page)
    )


def search_ids(version: Version, side: str, text: str, count: int) -> SearchResult:
    """Ids that contain a text in the id or the title: an exact match, then the most active."""
    table = _table(version, side)
    if text:
        lowered = text.lower()
        names = [name for name in ("id", "title") if name in table.columns]
        contains = [
            pl.col(name).cast(pl.String).str.to_lowercase().str.contains(lowered, literal=True)
            for name in names
        ]
        exact = pl.col("id").cast(pl.String) == text
        table = table.filter(pl.any_horizontal(contains)).sort(
            exact.cast(pl.Int8), descending=True, maintain_order=True
        )
        first = table.head(1).filter(exact)
        table = pl.concat([first, table.filter(~exact).top_k(count, by="interactions")])
    else:
        table = table.top_k(count, by="interactions")
    return SearchResult.model_construct(version=version.number, found=_infos(table.head(count)))


def _table(version: Version, side: str) -> pl.DataFrame:
    tables = version.run.tables
    if side not in tables:
        names = ", ".join(("items", "users", *version.run.columns))
        raise UnknownError(f"side must be one of {names}, not {side!r}")
    return tables[side]


def _clustered(version: Version, side: str, level: int) -> pl.DataFrame:
    table = _table(version, side)
    if "cluster" not in table.columns:
        raise UnknownError(f"the {side} are not clustered; request another side")
    try:
        return table_of_level(version.run, side, level)
    except CelrecError as error:
        raise UnknownError(str(error)) from error


def _infos(table: pl.DataFrame) -> list[IdInfo]:
    rows: list[dict[str, Any]] = table.select(
        name for name in ("id", "title", "interactions", "cluster") if name in table.columns
    ).to_dicts()
    return [IdInfo.model_construct(**row) for row in rows]
