"""How much the test error of hashed rows depends on the hash, on the first fold of MovieLens-1M.

    python benchmarks/hashes.py

Eight hashes each for the hashing trick with 200 rows and adaptive rows with 40, and two each
with somewhat more rows; 15 sweeps of the default solver on all training data. Nothing is chosen
by what it prints.
"""

from celrec import Plan, Split, load_dataset
from celrec.config.building import make_model
from celrec.offline.training import make_solver
from celrec.runtime.threads import flushed_denormals

_SWEEPS = 15
_CASES = (("modulo", 200, 8), ("ae", 40, 8), ("modulo", 240, 2), ("ae", 80, 2))


def main() -> None:
    split = Split.fold(load_dataset("ml-1m"), 1, of=5, seed=0)
    train = split.train_and_valid().seen()
    for embedding, rows, hashes in _CASES:
        errors = []
        for seed in range(hashes):
            plan = Plan(embedding, str(rows), seed=seed)
            model = make_model(train, plan)
            solver = make_solver(plan.settings(), model, train)
            solver.start(seed)
            with flushed_denormals():
                for _ in range(_SWEEPS):
                    solver.step()
            errors.append(solver.loss(split.test))
        told = " ".join(f"{error:.4f}" for error in errors)
        print(f"{embedding} with {rows} rows: {min(errors):.4f} to {max(errors):.4f}  ({told})")


if __name__ == "__main__":
    main()
