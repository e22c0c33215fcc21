import pytest
import torch

from celrec.cel.autograd_evidence import AutogradEvidence
from celrec.cel.criteria import CRITERIA, ClusterSums
from celrec.cel.quadratics import QuadraticEvidence, Quadratics
from celrec.embeddings.clustered import ClusteredEmbedding
from celrec.errors import CelrecError

IDS, DIM, CLUSTERS = 11, 3, 4
PRIOR = 0.5
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


def quadratic(table, vectors, targets):
    """Evidence with curvatures: of the same squared errors, and a prior N(0, I / PRIOR)."""
    curvature = PRIOR * torch.eye(DIM, dtype=torch.float64).repeat(IDS, 1, 1)
    linear = torch.zeros(IDS, DIM, dtype=torch.float64)
    vectors, targets = vectors.double(), targets.double()
    curvature.index_add_(0, SAMPLES, 2 * vectors[:, :, None] * vectors[:, None, :])
    linear.index_add_(0, SAMPLES, 2 * targets[:, None] * vectors)
    evidence = QuadraticEvidence(table, torch.bincount(SAMPLES, minlength=IDS))
    evidence.members = Quadratics(curvature, linear)
    return evidence


def evidence_for(name, problem):
    """What a criterion can be asked of: the gain alone needs curvatures."""
    table, evidence, vectors, targets = problem
    return quadratic(table, vectors, targets) if name == "gain" else evidence


def slow_gain(member, row, vectors, targets):
    """How far the squared errors of a member and the penalty of its prior fall, by solving."""
    own = member == SAMPLES
    features = torch.cat([vectors[own].double(), PRIOR**0.5 / 2**0.5 * torch.eye(DIM).double()])
    wanted = torch.cat([targets[own].double(), torch.zeros(DIM).double()])
    best = torch.linalg.lstsq(features, wanted).solution

    def loss(vector):
        return float((wanted - features @ vector).square().sum())

    return loss(row.double()) - loss(best)


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
                "gain": sum(slow_gain(j, row, vectors, targets) for j in members),
            }[name]
        )
    return priorities


@pytest.mark.parametrize("name", CRITERIA)
def test_priorities_are_those_of_a_slow_sum_over_members(name, problem):
    table, _, vectors, targets = problem
    found = CRITERIA[name](ClusterSums(table, evidence_for(name, problem)))
    assert found.tolist() == pytest.approx(slow(name, table, vectors, targets), rel=1e-4)


@pytest.mark.parametrize("name", CRITERIA)
def test_priorities_are_sums_in_double_precision_for_active_clusters_only(name, problem):
    table, *_ = problem
    found = CRITERIA[name](ClusterSums(table, evidence_for(name, problem)))
    assert found.dtype == torch.float64
    assert found.shape == (CLUSTERS,)


def test_a_gain_without_curvatures_is_refused(problem):
    table, evidence, *_ = problem
    with pytest.raises(CelrecError, match="'gain' needs the curvature of each id's loss"):
        CRITERIA["gain"](ClusterSums(table, evidence))
