import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celrec import CelrecError
from celrec.embeddings.clustered import ClusteredEmbedding


def clusters_of(table):
    return table.assignment[:-1].tolist()


def trained(ids=10, dim=3, max_clusters=5):
    """A table of four clusters with rows that differ."""
    table = ClusteredEmbedding(ids, dim, max_clusters=max_clusters)
    for cluster, leaving in [(0, [1, 2, 3, 4]), (1, [4]), (0, [9])]:
        new = table.split(cluster, torch.tensor(leaving))
        with torch.no_grad():
            table.weight[new] += new
    table.unseen_cluster = 2
    return table


def everything(table):
    """All that a refused change has to leave alone."""
    return {name: tensor.clone() for name, tensor in table.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def test_an_id_has_the_row_of_its_cluster():
    table = trained()
    clusters = clusters_of(table)
    assert clusters == [0, 1, 1, 1, 2, 0, 0, 0, 0, 3]
    ids = torch.tensor([[9, 4, 0], [1, 3, 8]])
    for where in [(i, j) for i in range(2) for j in range(3)]:
        expected = table.weight[clusters[ids[where]]]
        assert torch.equal(table(ids)[where], expected)


def test_all_ids_begin_in_the_one_active_cluster():
    table = ClusteredEmbedding(6, 2, max_clusters=4)
    assert (table.num_clusters, table.num_rows, table.max_clusters) == (1, 1, 4)
    assert table.sizes().tolist() == [6]
    assert table.members(0).tolist() == list(range(6))
    assert table.parent.tolist() == [-1] * 4
    assert table.unseen_cluster == 0


@given(st.data())
def test_a_split_changes_no_vector(data):
    ids = data.draw(st.integers(2, 12))
    table = ClusteredEmbedding(ids, 3, max_clusters=ids)
    asked = torch.tensor([*range(ids), -1, ids, 2**50])
    while table.num_clusters < ids:
        large = [k for k, size in enumerate(table.sizes().tolist()) if size > 1]
        cluster = data.draw(st.sampled_from(large))
        members = table.members(cluster).tolist()
        leaving = data.draw(
            st.lists(st.sampled_from(members), unique=True, min_size=1, max_size=len(members) - 1)
        )
        before = table(asked)
        new = table.split(cluster, torch.tensor(leaving))
        assert torch.equal(table(asked), before)
        assert new == table.num_clusters - 1
        assert table.members(new).tolist() == sorted(leaving)
        assert int(table.parent[new]) == cluster


def test_the_split_tree_is_kept():
    table = trained()
    assert table.parent.tolist() == [-1, 0, 1, 0, -1]


@pytest.mark.parametrize(
    ("cluster", "leaving", "complaint"),
    [
        (0, [1], "members of cluster 0"),  # is in cluster 1
        (0, [0, 1], "members of cluster 0"),  # one is, one is not
        (0, [], "members of cluster 0"),
        (2, [-1], "members of cluster 2"),  # the place of unseen ids, which are in cluster 2
        (2, [10], "members of cluster 2"),
        (0, [-5], "members of cluster 0"),  # not id 5 counted from the end
        (0, [99], "members of cluster 0"),
        (1, [1, 2, 3], "at least one member must stay"),
        (2, [4], "at least one member must stay"),
        (4, [0], "active one, 0 … 3, not 4"),
        (-1, [9], "active one, 0 … 3, not -1"),
    ],
)
def test_a_refused_split_changes_nothing(cluster, leaving, complaint):
    table = trained()
    before = everything(table)
    with pytest.raises(CelrecError, match=complaint):
        table.split(cluster, torch.tensor(leaving))
    assert same(everything(table), before)


def test_no_split_goes_beyond_the_rows_there_are():
    table = trained(max_clusters=4)
    before = everything(table)
    with pytest.raises(CelrecError, match="all 4 clusters are in use; raise max_clusters"):
        table.split(0, torch.tensor([0]))
    assert same(everything(table), before)


@pytest.mark.parametrize(
    ("clusters", "dtype"),
    [
        (1, torch.uint8),
        (256, torch.uint8),
        (257, torch.int16),
        (32_768, torch.int16),
        (32_769, torch.int32),
    ],
)
def test_clusters_are_numbered_by_the_narrowest_integers_that_fit(clusters, dtype):
    table = ClusteredEmbedding(clusters, 1, max_clusters=clusters)
    assert table.assignment.dtype == dtype
    table.start_from(torch.arange(clusters))
    assert table.row_of(torch.arange(clusters)).tolist() == list(range(clusters))
    assert table.sizes().tolist() == [1] * clusters


@pytest.mark.parametrize("clusters", [0, 6, -1])
def test_there_is_at_least_one_cluster_and_at_most_one_per_id(clusters):
    with pytest.raises(CelrecError, match="max_clusters must lie in 1 … 5"):
        ClusteredEmbedding(5, 2, max_clusters=clusters)


def test_the_weight_stays_the_same_tensor_through_all_changes():
    table = ClusteredEmbedding(6, 2, max_clusters=4)
    weight, place, shape = table.weight, table.weight.data_ptr(), table.weight.shape
    table.split(0, torch.tensor([1, 2]))
    table.assign(torch.tensor([0, 1, 0, 1, 0, 1]))
    table.split(0, torch.tensor([4]))
    table.merge(0, 1)
    table.grow(9)
    table.load_state_dict(everything(table))
    table.start_from(torch.arange(9) % 4)
    assert table.weight is weight
    assert (weight.data_ptr(), weight.shape) == (place, shape)


def test_an_optimiser_built_before_a_split_trains_the_new_row():
    table = ClusteredEmbedding(6, 2, max_clusters=4)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    table.split(0, torch.tensor([1, 2]))
    before = table(torch.arange(6)).detach()
    table(torch.tensor([2])).sum().backward()
    optimizer.step()
    after = table(torch.arange(6)).detach()
    torch.testing.assert_close(after[1:3], before[1:3] - 0.5)
    assert torch.equal(after[[0, 3, 4, 5]], before[[0, 3, 4, 5]])


def test_assign_puts_every_id_where_it_is_reported():
    table = trained()
    wanted = [3, 3, 2, 1, 0, 0, 1, 2, 3, 3]
    table.assign(torch.tensor(wanted))
    assert clusters_of(table) == wanted
    assert table.unseen_cluster == 2
    assert table.sizes().tolist() == [2, 2, 2, 4]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_assign_takes_integers_of_any_type(dtype):
    table = trained()
    wanted = [3, 3, 2, 1, 0, 0, 1, 2, 3, 3]
    table.assign(torch.tensor(wanted, dtype=dtype))
    assert clusters_of(table) == wanted


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ([0, 0, 0, 1, 1, 1, 3, 3, 3, 3], "cluster 2 would be empty"),
        ([0] * 10, "cluster 1 would be empty"),
        ([0, 1, 2, 3, 4, 0, 0, 0, 0, 0], "cluster 4, which is not active"),
        ([0, 1, 2, 3, -1, 0, 0, 0, 0, 0], "cluster -1, which is not active"),
        ([0, 1, 2, 3], "one cluster per id \\(10\\), not shape \\(4,\\)"),
        ([[0, 1, 2, 3, 0, 0, 0, 0, 0, 0]], "one cluster per id"),
    ],
)
def test_a_refused_assignment_changes_nothing(assignment, complaint):
    table = trained()
    before = everything(table)
    with pytest.raises(CelrecError, match=complaint):
        table.assign(torch.tensor(assignment))
    assert same(everything(table), before)


def test_a_table_can_start_from_a_given_clustering():
    table = ClusteredEmbedding(5, 2, max_clusters=4)
    table.start_from(torch.tensor([2, 0, 1, 0, 2]))
    assert table.num_clusters == 3
    assert clusters_of(table) == [2, 0, 1, 0, 2]
    assert table.parent.tolist() == [-1] * 4
    assert table.split(2, torch.tensor([4])) == 3


def test_starting_anew_forgets_the_tree_and_a_cluster_of_unseen_ids_that_is_gone():
    table = trained()
    table.unseen_cluster = 3
    table.start_from(torch.arange(10) % 2)
    assert table.num_clusters == 2
    assert table.parent.tolist() == [-1] * 5
    assert table.unseen_cluster == 0


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        ([0, 1, 2, 3, 4, 5, 0, 0, 0, 0], "6 clusters do not fit in max_clusters=5"),
        ([0, 0, 2, 2, 2, 2, 2, 2, 2, 2], "cluster 1 would be empty"),
        ([0, 1], "one cluster per id"),
        ([0, 1, -1, 0, 0, 0, 0, 0, 0, 0], "cluster -1"),
        ([], "one cluster per id"),
    ],
)
def test_a_refused_start_changes_nothing(assignment, complaint):
    table = trained()
    before = everything(table)
    with pytest.raises(CelrecError, match=complaint):
        table.start_from(torch.tensor(assignment, dtype=torch.int64))
    assert same(everything(table), before)


def test_growth_keeps_assignments_and_puts_new_ids_with_the_unseen():
    table = trained()
    ids = torch.tensor([*range(12), -1, 99])
    vectors, clusters = table(ids), clusters_of(table)
    table.grow(12)
    assert clusters_of(table) == [*clusters, 2, 2]
    assert table.num_embeddings == 12
    assert torch.equal(table(ids), vectors)
    table.assign(torch.tensor([*clusters, 1, 3]))
    assert torch.equal(table(torch.tensor([10, 11, 12])), table.weight[[1, 3, 2]])


def test_a_table_does_not_shrink_but_may_stay():
    table = trained()
    table.grow(10)
    assert table.num_embeddings == 10
    with pytest.raises(CelrecError, match="can only grow, from 10, not to 9"):
        table.grow(9)


def test_unseen_ids_share_the_row_of_their_cluster():
    table = trained()
    unseen = torch.tensor([-1, -11, 10, 11, 2**62, -(2**62)])
    for cluster in range(4):
        table.unseen_cluster = cluster
        assert torch.equal(table(unseen), table.weight[cluster].expand(6, 3))
    for inactive in (4, -1):
        with pytest.raises(CelrecError, match="active one"):
            table.unseen_cluster = inactive


@pytest.mark.parametrize("ids", [10, 3000, 5])
def test_a_state_dict_restores_the_whole_table_whatever_its_number_of_ids_was(ids):
    table = trained()
    fresh = ClusteredEmbedding(ids, 3, max_clusters=5)
    fresh.load_state_dict(everything(table))
    assert same(everything(fresh), everything(table))
    assert fresh.num_embeddings == 10
    assert fresh.num_clusters == 4
    asked = torch.tensor([*range(12), -1])
    assert torch.equal(fresh(asked), table(asked))
    assert fresh.split(0, torch.tensor([0])) == 4  # and it goes on as the first one would


def test_a_grown_table_inside_a_model_is_restored_too():
    model, fresh = (torch.nn.ModuleList([trained(), trained()]) for _ in range(2))
    model[0].grow(13)
    fresh.load_state_dict(model.state_dict())
    assert (fresh[0].num_embeddings, fresh[1].num_embeddings) == (13, 10)
    assert same(everything(fresh), everything(model))


def test_safetensors_keep_the_whole_table():
    safetensors = pytest.importorskip("safetensors.torch")
    table = trained()
    fresh = ClusteredEmbedding(10, 3, max_clusters=5)
    fresh.load_state_dict(safetensors.load(safetensors.save(table.state_dict())))
    assert same(everything(fresh), everything(table))


def test_serving_takes_the_active_rows_and_the_assignment():
    table = ClusteredEmbedding(1000, 8, max_clusters=300)
    for clusters in (1, 2, 3):
        memory = table.memory()
        assert memory.table == table.weight[:clusters].nbytes == clusters * 8 * 4
        assert memory.index == table.assignment.nbytes == 1001 * 2
        table.split(0, torch.tensor([clusters]))


def test_a_probe_stands_in_for_the_rows_and_is_gone_afterwards():
    table = ClusteredEmbedding(4, 2, max_clusters=2, padding_idx=1)
    ids = torch.arange(4)
    before = table(ids)
    with table.probing(lambda asked: torch.ones(*asked.shape, 2)):
        assert table(ids).tolist() == [[1, 1], [0, 0], [1, 1], [1, 1]]
    assert torch.equal(table(ids), before)
    with pytest.raises(ZeroDivisionError), table.probing(lambda _: 1 / 0):
        table(ids)
    assert torch.equal(table(ids), before)


@given(st.data())
def test_any_sequence_of_splits_and_assignments_keeps_clusters_a_partition(data):
    ids = data.draw(st.integers(1, 15))
    table = ClusteredEmbedding(ids, 1, max_clusters=data.draw(st.integers(1, ids)))
    for _ in range(data.draw(st.integers(0, 12))):
        try:
            if data.draw(st.booleans()):
                cluster = data.draw(st.integers(0, table.num_clusters - 1))
                members = st.sampled_from(table.members(cluster).tolist())
                anyone = st.integers(-2, ids + 1)
                leaving = data.draw(st.lists(members) | st.lists(members | anyone))
                table.split(cluster, torch.tensor(leaving, dtype=torch.int64))
            else:
                shuffled = st.permutations(clusters_of(table))
                clusters = st.integers(-1, table.num_clusters)
                anything = st.lists(clusters, min_size=ids, max_size=ids)
                table.assign(torch.tensor(data.draw(shuffled | anything)))
        except CelrecError:
            pass  # a refusal is fine, a broken table is not
        members = [table.members(k).tolist() for k in range(table.num_clusters)]
        assert all(members)
        assert sorted(i for some in members for i in some) == list(range(ids))
        assert table.sizes().tolist() == [len(some) for some in members]
        assert int(table.sizes().sum()) == ids
        assert 0 <= table.unseen_cluster < table.num_clusters


class Slow:
    """Clusters with names that never change: the number of one is its place in `names`.

    Id None stands for the unseen ones.
    """

    def __init__(self, table):
        self.names = list(range(table.num_clusters))
        self.named = table.num_clusters
        self.of = dict(enumerate(clusters_of(table))) | {None: table.unseen_cluster}
        self.parent = dict.fromkeys(self.names)
        self.row = {name: table.weight[name].tolist() for name in self.names}

    def split(self, cluster, leaving):
        parent, new = self.names[cluster], self.named
        self.named += 1
        self.names.append(new)
        self.of |= dict.fromkeys(leaving, new)
        self.parent[new] = parent
        self.row[new] = self.row[parent]

    def merge(self, first, second):
        kept, gone = self.names[min(first, second)], self.names[max(first, second)]
        self.of = {i: kept if name == gone else name for i, name in self.of.items()}
        self.parent = {c: kept if p == gone else p for c, p in self.parent.items()}
        self.names.remove(gone)
        del self.parent[gone], self.row[gone]

    def keep(self, ids, max_clusters):
        unseen = self.of[None]
        left = [self.of[one] for one in ids]
        for gone in [name for name in self.names if name not in (*left, unseen)]:
            self.parent = {c: self.parent[gone] if p == gone else p for c, p in self.parent.items()}
            self.names.remove(gone)
            del self.parent[gone], self.row[gone]
        least = len(left) + (unseen not in left)
        left += [unseen] * (max(least, max_clusters) - len(left))
        self.of = dict(enumerate(left)) | {None: unseen}

    def assign(self, clusters):
        self.of |= {i: self.names[cluster] for i, cluster in enumerate(clusters)}

    def check(self, table):
        number = {name: place for place, name in enumerate(self.names)} | {None: -1}
        spare = table.max_clusters - len(self.names)
        assert table.num_clusters == table.num_rows == len(self.names)
        assert clusters_of(table) == [number[self.of[i]] for i in range(table.num_embeddings)]
        assert table.unseen_cluster == number[self.of[None]]
        parents = [number[self.parent[name]] for name in self.names]
        assert table.parent.tolist() == parents + [-1] * spare
        assert all(parent < child for child, parent in enumerate(parents))
        assert table.weight[: len(self.names)].tolist() == [self.row[name] for name in self.names]
        assert bool(table.sizes().all())


@st.composite
def clusterings(draw, at_least=1, spare=0):
    """Tables that start from some clusters, whose rows differ."""
    ids = draw(st.integers(2, 12))
    table = ClusteredEmbedding(ids, 1, max_clusters=draw(st.integers(2, ids)))
    clusters = draw(st.integers(at_least, table.max_clusters - spare))
    table.start_from(torch.arange(ids) % clusters)
    return table


@given(clusterings(), st.data())
def test_any_sequence_of_splits_assignments_merges_and_drops_does_as_a_slow_one_would(table, data):
    slow = Slow(table)
    for _ in range(data.draw(st.integers(1, 15))):
        clusters = st.integers(0, table.num_clusters - 1)
        large = [k for k, size in enumerate(table.sizes().tolist()) if size > 1]
        splits = bool(large) and table.num_clusters < table.max_clusters
        merges = table.num_clusters > 1
        possible = ["split"] * splits + ["merge"] * merges + ["assign", "unseen", "train", "keep"]
        step = data.draw(st.sampled_from(possible))
        if step == "split":
            cluster = data.draw(st.sampled_from(large))
            members = st.sampled_from(table.members(cluster).tolist())
            size = int(table.sizes()[cluster])
            some = data.draw(st.lists(members, unique=True, min_size=1, max_size=size - 1))
            table.split(cluster, torch.tensor(some))
            slow.split(cluster, some)
        elif step == "merge":
            pair = data.draw(st.lists(clusters, unique=True, min_size=2, max_size=2))
            table.merge(*pair)
            slow.merge(*pair)
        elif step == "assign":
            wanted = data.draw(st.permutations(clusters_of(table)))
            table.assign(torch.tensor(wanted))
            slow.assign(wanted)
        elif step == "keep":
            everyone = range(table.num_embeddings)
            kept = [one for one in everyone if data.draw(st.integers(0, 3))]
            table.keep(torch.tensor(kept, dtype=torch.int64))
            slow.keep(kept, table.max_clusters)
            assert table.num_embeddings == len(slow.of) - 1
        elif step == "unseen":
            table.unseen_cluster = cluster = data.draw(clusters)
            slow.of[None] = slow.names[cluster]
        else:  # rows that are copies of each other drift apart
            with torch.no_grad():
                table.weight += torch.randn_like(table.weight)
            slow.row = {name: table.weight[k].tolist() for k, name in enumerate(slow.names)}
        slow.check(table)


def test_clusters_that_lose_everybody_are_closed_and_the_tree_goes_on_without_them():
    table = trained()
    table.keep(torch.tensor([0, 4]))
    # Cluster 1, between 0 and 2, and cluster 3 are closed.
    assert table.num_clusters == 2
    assert clusters_of(table) == [0, 1, 1, 1, 1]  # room for as many ids as clusters
    assert table.parent.tolist() == [-1, 0, -1, -1, -1]
    assert table.split(1, torch.tensor([3])) == 2
    before = table(torch.tensor([-1]))
    table.keep(torch.tensor([], dtype=torch.int64))
    assert (table.num_clusters, table.unseen_cluster) == (1, 0)
    assert table.parent.tolist() == [-1] * 5
    assert torch.equal(table(torch.tensor([-1])), before)


@pytest.mark.parametrize("ids", [[0, 10], [-1, 2], [2, 1], [3, 3]])
def test_ids_to_keep_that_are_not_there_or_in_order_change_nothing(ids):
    table = trained()
    before = everything(table)
    with pytest.raises(CelrecError, match="ids to keep must ascend, from 0 to 9 at most"):
        table.keep(torch.tensor(ids))
    assert same(everything(table), before)


@pytest.mark.parametrize("pair", [(1, 3), (3, 1)])
def test_the_later_of_two_clusters_joins_the_earlier_and_those_after_it_move_up(pair):
    table = ClusteredEmbedding(6, 2, max_clusters=6)
    table.start_from(torch.tensor([0, 1, 2, 3, 4, 3]))
    rows = table.weight.detach().clone()
    table.merge(*pair)
    assert clusters_of(table) == [0, 1, 2, 1, 3, 1]
    assert table.num_clusters == table.num_rows == 4
    assert torch.equal(table.weight[:4], rows[[0, 1, 2, 4]])
    assert table.sizes().tolist() == [1, 3, 1, 1]


@pytest.mark.parametrize(
    ("pair", "parents"),
    [
        # 0 ── 1 ── 2 ── 4, and 3 and 5 under 1
        ((0, 1), [-1, 0, 0, 1, 0, -1]),  # 2, 3 and 5 become 1, 2 and 4 and hang under 0
        ((1, 2), [-1, 0, 1, 1, 1, -1]),  # 4 becomes 3 and hangs under 1
        ((0, 2), [-1, 0, 1, 0, 1, -1]),  # 4 becomes 3 and hangs under 0
        ((3, 4), [-1, 0, 1, 1, 1, -1]),  # 4 had no children
        ((4, 5), [-1, 0, 1, 1, 2, -1]),  # the last one goes
    ],
)
def test_what_was_split_from_a_cluster_that_is_gone_hangs_under_the_kept_one(pair, parents):
    table = ClusteredEmbedding(6, 2, max_clusters=6)
    for cluster, leaving in [(0, [1, 2, 3, 4, 5]), (1, [2, 4]), (1, [3]), (2, [4]), (1, [5])]:
        table.split(cluster, torch.tensor(leaving))
    assert table.parent.tolist() == [-1, 0, 1, 1, 2, 1]
    table.merge(*pair)
    assert table.parent.tolist() == parents


@pytest.mark.parametrize(
    ("unseen", "pair", "found"),
    [(0, (1, 2), 0), (1, (1, 2), 1), (2, (1, 2), 1), (3, (1, 2), 2), (3, (0, 3), 0)],
)
def test_unseen_ids_follow_their_cluster(unseen, pair, found):
    table = trained()
    table.unseen_cluster = unseen
    table.merge(*pair)
    assert table.unseen_cluster == found


@given(clusterings(at_least=2), st.data())
def test_a_merge_changes_no_vector_but_those_of_the_cluster_that_is_gone(table, data):
    clusters = st.integers(0, table.num_clusters - 1)
    pair = data.draw(st.lists(clusters, unique=True, min_size=2, max_size=2))
    table.unseen_cluster = data.draw(clusters)
    ids = torch.arange(-1, table.num_embeddings + 1)
    gone = table.row_of(ids) == max(pair)
    expected = table(ids).detach()
    expected[gone] = table.weight[min(pair)].detach()
    table.merge(*pair)
    assert torch.equal(table(ids), expected)


@given(clusterings(spare=1), st.data())
def test_a_merge_undoes_a_split(table, data):
    large = [k for k, size in enumerate(table.sizes().tolist()) if size > 1]
    cluster = data.draw(st.sampled_from(large))
    before, active = everything(table), table.num_clusters
    new = table.split(cluster, table.members(cluster)[1:])
    table.merge(*data.draw(st.permutations([cluster, new])))
    after = everything(table)
    for state in (before, after):
        state["weight"] = state["weight"][:active]
    assert same(after, before)


def test_all_clusters_can_be_merged_into_one_and_split_again():
    table = trained(max_clusters=4)
    while table.num_clusters > 1:
        table.merge(0, 1)
    assert clusters_of(table) == [0] * 10
    assert table.parent.tolist() == [-1] * 4
    assert table.unseen_cluster == 0
    assert table.split(0, torch.tensor([3])) == 1
    assert torch.equal(table(torch.arange(10)), table.weight[[0]].expand(10, 3))


def test_clusters_beyond_the_first_byte_are_merged():
    table = ClusteredEmbedding(257, 1, max_clusters=257)
    table.start_from(torch.arange(257))
    table.merge(0, 128)
    assert table.assignment.dtype == torch.int16
    assert clusters_of(table) == [*range(128), 0, *range(128, 256)]


def test_an_optimiser_built_before_a_merge_trains_the_row_that_both_share():
    table = trained()
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    table.merge(1, 2)
    before = table(torch.arange(10)).detach()
    table(torch.tensor([4])).sum().backward()
    optimizer.step()
    expected = before.clone()
    expected[1:5] -= 0.5
    torch.testing.assert_close(table(torch.arange(10)).detach(), expected)


@pytest.mark.parametrize(
    ("pair", "complaint"),
    [
        ((0, 0), "cluster 0 cannot be merged with itself"),
        ((3, 3), "cluster 3 cannot be merged with itself"),
        ((0, 4), "active one, 0 … 3, not 4"),
        ((4, 0), "active one, 0 … 3, not 4"),
        ((4, 4), "active one, 0 … 3, not 4"),
        ((-1, 1), "active one, 0 … 3, not -1"),
        ((1, -1), "active one, 0 … 3, not -1"),
    ],
)
def test_a_refused_merge_changes_nothing(pair, complaint):
    table = trained()
    before = everything(table)
    with pytest.raises(CelrecError, match=complaint):
        table.merge(*pair)
    assert same(everything(table), before)


def test_several_clusters_are_opened_as_one_after_the_other():
    tables = [ClusteredEmbedding(9, 2, max_clusters=5) for _ in range(2)]
    for table in tables:
        table.start_from(torch.arange(9) % 2)
        with torch.no_grad():
            table.weight.copy_(torch.arange(10).view(5, 2))
    parents = [1, 2, 0]  # the second is the first of those that are opened
    assert list(tables[0].open_all(parents)) == [2, 3, 4]
    assert [tables[1].open(parent) for parent in parents] == [2, 3, 4]
    assert same(*(everything(table) for table in tables))
    assert tables[0].weight.tolist() == [[0, 1], [2, 3], [2, 3], [2, 3], [0, 1]]
    assert tables[0].parent.tolist() == [-1, -1, 1, 2, 0]
    with pytest.raises(CelrecError, match="all 5 clusters are in use; raise max_clusters"):
        tables[0].open_all([0])


def test_a_cluster_that_begins_anew_leaves_what_was_split_from_it_to_where_it_came_from():
    table = ClusteredEmbedding(6, 2, max_clusters=4)
    for cluster, leaving in ((0, [1, 2, 3]), (1, [2, 3]), (2, [3])):
        table.split(cluster, torch.tensor(leaving))
    with torch.no_grad():
        table.weight.copy_(torch.arange(8).view(4, 2))
    table.reopen(1, parent=3)  # which came from it by way of another
    assert table.parent.tolist() == [-1, 3, 0, 2]
    assert table.weight.tolist() == [[0, 1], [6, 7], [4, 5], [6, 7]]
    assert table.num_clusters == 4
