import copy

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec.cel.member_lists import MemberLists
from celrec.embeddings.clustered import ClusteredEmbedding

CLUSTERS, DIM = 5, 2


class SlowMembers:
    """A dictionary of lists, those that joined last first."""

    def __init__(self, clusters):
        self.lists = {cluster: [] for cluster in range(clusters)}
        self.counts = {}

    def count(self, event_ids, assignment):
        for one in sorted(set(event_ids)):
            if one not in self.counts:
                self.lists[assignment[one]].insert(0, one)
                self.counts[one] = 0
        for one in event_ids:
            self.counts[one] += 1

    def cluster_of(self, one):
        return next(cluster for cluster, members in self.lists.items() if one in members)

    def move(self, ids, goals):
        moved = 0
        for one, goal in zip(ids, goals, strict=True):
            own = self.cluster_of(one)
            if own == goal or len(self.lists[own]) == 1:
                continue
            self.lists[own].remove(one)
            self.lists[goal].insert(0, one)
            moved += 1
        return moved

    def events(self, cluster):
        return sum(self.counts[one] for one in self.lists[cluster])


def counts_array(slow, ids):
    counts = np.zeros(ids, np.int64)
    for one, count in slow.counts.items():
        counts[one] = count
    return counts


def data_length(counts):
    """Up to the last id that has had an event."""
    return int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0


def check(members, slow, table):
    for cluster, expected in slow.lists.items():
        assert members.of(cluster).tolist() == expected
        assert members.sizes[cluster] == len(expected)
        assert members.events[cluster] == slow.events(cluster)
        assert all(table.assignment[one] == cluster for one in expected)
    assert members.all_events == sum(slow.counts.values())
    everyone, ends = members.of_all(np.arange(CLUSTERS)[::-1].copy())
    backwards = reversed(slow.lists.values())
    assert everyone.tolist() == [one for members in backwards for one in members]
    assert np.diff(ends).tolist() == [len(slow.lists[c]) for c in reversed(range(CLUSTERS))]
    for most in (0, 2.5):
        crowded = [c for c, some in slow.lists.items() if slow.events(c) > most and len(some) > 1]
        crowded.sort(key=lambda cluster: (-slow.events(cluster), cluster))
        assert members.crowded(everyone, most).tolist() == crowded


class Pair:
    """The members of a table and the slow ones, changed alike."""

    def __init__(self, ids, assignment):
        self.table = ClusteredEmbedding(ids, DIM, max_clusters=CLUSTERS)
        self.table.open_all([0] * (CLUSTERS - 1))
        self.table.assignment[:-1] = torch.tensor(assignment)
        self.members, self.slow = MemberLists(self.table), SlowMembers(CLUSTERS)

    def count(self, events):
        before = dict(self.slow.counts)
        known = counts_array(self.slow, self.table.num_embeddings)
        known = known[: data_length(known)]  # of ids that come late nothing is known yet
        different, doubled = self.members.count(np.array(events, np.int64), known)
        self.slow.count(events, self.table.assignment.tolist())
        assert different.tolist() == sorted(set(events))
        assert doubled.tolist() == [
            one
            for one in sorted(set(events))
            if any(before.get(one, 0) < 2**power <= self.slow.counts[one] for power in range(12))
        ]

    def move(self, wishes):
        wishes = [wish for wish in wishes if wish[0] in self.slow.counts]
        ids = np.array([one for one, _ in wishes], np.int64)
        goals = np.array([goal for _, goal in wishes], np.int64)
        before = {cluster for cluster, some in self.slow.lists.items() if some}
        counts = counts_array(self.slow, self.table.num_embeddings)
        moved = self.members.move(ids, goals, counts)
        assert moved == self.slow.move(ids.tolist(), goals.tolist())
        # No cluster is emptied by a move.
        assert before <= {cluster for cluster, some in self.slow.lists.items() if some}

    def merge(self, cluster, goal):
        counts = counts_array(self.slow, self.table.num_embeddings)
        self.members.merge(cluster, goal, counts)
        if cluster != goal:
            for one in self.slow.lists[cluster]:
                self.slow.lists[goal].insert(0, one)
            self.slow.lists[cluster] = []

    def grow(self, more):
        self.table.grow(self.table.num_embeddings + more)
        self.members.grow(self.table.num_embeddings)

    def keep(self, kept):
        ids, slow = np.array(kept, np.int64), self.slow
        counts = counts_array(slow, self.table.num_embeddings)
        clusters = self.table.kept_rows(torch.from_numpy(ids)).numpy()
        self.table.keep(torch.from_numpy(ids))
        self.members.keep(ids, clusters, counts)
        number = {one: place for place, one in enumerate(kept)}
        slow.counts = {number[one]: n for one, n in slow.counts.items() if one in number}
        lists = [[number[one] for one in slow.lists[c] if one in number] for c in clusters.tolist()]
        lists += [[]] * (CLUSTERS - len(lists))
        slow.lists = {cluster: list(some) for cluster, some in enumerate(lists)}

    def restart(self):
        state = copy.deepcopy(self.members.state_dict())
        self.members = MemberLists(self.table)
        self.members.load_state_dict(state)


@given(st.data())
def test_members_are_those_of_a_dictionary_of_lists_whatever_happens(data):
    ids = data.draw(st.integers(CLUSTERS, 8))
    pair = Pair(ids, [data.draw(st.integers(0, CLUSTERS - 1)) for _ in range(ids)])
    for _ in range(data.draw(st.integers(1, 8))):
        some = st.integers(0, pair.table.num_embeddings - 1)
        match data.draw(st.sampled_from(["count", "move", "merge", "grow", "keep", "restart"])):
            case "count":
                pair.count(data.draw(st.lists(some, min_size=1, max_size=8)))
            case "move":
                wish = st.tuples(some, st.integers(0, CLUSTERS - 1))
                pair.move(data.draw(st.lists(wish, max_size=8)))
            case "merge":
                pair.merge(*(data.draw(st.integers(0, CLUSTERS - 1)) for _ in range(2)))
            case "grow":
                pair.grow(data.draw(st.integers(0, 5)))
            case "keep":
                pair.keep(sorted(data.draw(st.sets(some))))
            case "restart":
                pair.restart()
        check(pair.members, pair.slow, pair.table)
    assert pair.members.sizes.sum() == len(pair.slow.counts)
    assert pair.members.events.sum() == sum(pair.slow.counts.values())


def test_a_state_that_was_copied_is_not_changed_by_what_comes():
    pair = Pair(6, [0, 0, 0, 1, 1, 2])
    pair.count([0, 1, 2, 3, 4, 5])
    state = copy.deepcopy(pair.members.state_dict())
    other = MemberLists(pair.table)
    other.load_state_dict(state)
    before = {name: value.clone() for name, value in state.items()}
    other.move(np.array([0]), np.array([2]), np.ones(6, np.int64))
    assert all(torch.equal(state[name], before[name]) for name in state)


def test_bytes_are_those_of_the_lists():
    table = ClusteredEmbedding(100, DIM, max_clusters=CLUSTERS)
    assert MemberLists(table).nbytes == CLUSTERS * (8 + 8 + 4) + 100 * 8
