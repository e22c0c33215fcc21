import pytest
import torch

from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.cel.criteria import CRITERIA, ClusterSums
from celrec.embeddings.clustered import ClusteredEmbedding

IDS, DIM, CLUSTERS = 11, 3, 4
SAMPLES = torch.tensor([0, 0, 0, 1, 1, 4, 5, 5, 5, 5, 9, 10, 7, 7])


@pytest.fixture
def problem():
    torch.manual_seed(0)
    table = ClusteredEmbedding(IDS, DIM, max_clusters=6)
    table.start_from(torch.arange(IDS) % CLUSTERS)
    vectors, targets = torch.randn(len(SAMPLES), DIM), torch.randn(len(SAMPLES))

    def objective(rows):
        return ((vectors[rows] * table(SAMPLES[rows])).sum(-1) - targets[rows]) ** 2

    data = [torch.arange(5), torch.arange(5, len(SAMPLES))]
    return table, AutogradEvidence(table, objective, data=data), vectors, targets


def slow(name, table, vectors, targets):
    """Priority by priority from the definition, member by member."""
    priorities = []
    for cluster in range(CLUSTERS):
        row = table.weight[cluster].detach()
        members = [j for j in range(IDS) if int(table.assignment[j]) == cluster]
        loss, interactions, norm = 0.0, 0, 0.0
        for j in members:
            gradient = torch.zeros(DIM)
            for n in [n for n, sample in enumerate(SAMPLES) if int(sample) == j]:
                error = targets[n] - vectors[n] @ row
                loss += float(error**2)
                interactions += 1
                gradient += 2 * error * vectors[n]
            norm += float(gradient @ gradient)
        priorities.append(
            {
                "interactions": interactions,
                "members": len(members),
                "total-loss": loss,
                "mean-loss": loss / len(members),
                "gradient-norm": norm,
            }[name]
        )
    return priorities


@pytest.mark.parametrize("name", CRITERIA)
def test_priorities_are_those_of_a_slow_sum_over_members(name, problem):
    table, evidence, vectors, targets = problem
    found = CRITERIA[name](ClusterSums(table, evidence))
    assert found.tolist() == pytest.approx(slow(name, table, vectors, targets), rel=1e-4)


@pytest.mark.parametrize("name", CRITERIA)
def test_priorities_are_sums_in_double_precision_for_active_clusters_only(name, problem):
    table, evidence, *_ = problem
    found = CRITERIA[name](ClusterSums(table, evidence))
    assert found.dtype == torch.float64
    assert found.shape == (CLUSTERS,)
