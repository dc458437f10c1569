"""K-means on many processes: any algorithm that adds up over examples needs one allreduce a round, and no gradient.

    sirtakirun -np 2 python examples/gallery/kmeans.py

Each rank assigns its own points to the nearest center and sums them; the allreduce adds up sums and counts; every rank
then moves the centers alike. The result is that of one process on all points, which is computed beside it, and that of
scikit-learn where it is installed.
"""

import argparse
import importlib.util

import torch

import sirtaki.torch as hvd


def points_of_all_ranks(count: int) -> torch.Tensor:
    """(count, 2) float64: four clouds, the same on every rank."""
    generator = torch.Generator().manual_seed(0)
    clouds = torch.tensor([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0], [6.0, 6.0]], dtype=torch.float64)
    which = torch.randint(len(clouds), (count,), generator=generator)
    return clouds[which] + torch.randn(count, 2, generator=generator, dtype=torch.float64)


def sums_by_center(points: torch.Tensor, centers: torch.Tensor) -> torch.Tensor:
    """(centers, 4): for each center the sum of its points, their number, and the sum of their squared distances."""
    distances, nearest = torch.cdist(points, centers).min(1)
    rows = torch.cat([points, torch.ones(len(points), 1), distances.square().unsqueeze(1)], 1)
    return torch.zeros(len(centers), 4, dtype=points.dtype).index_add_(0, nearest, rows)


def moved(centers: torch.Tensor, sums: torch.Tensor) -> torch.Tensor:
    """The mean of the points of each center; a center without points stays."""
    counts = sums[:, 2:3]
    return torch.where(counts > 0, sums[:, :2] / counts.clamp(min=1), centers)


def kmeans(points: torch.Tensor, centers: torch.Tensor, rounds: int, distributed: bool) -> tuple[torch.Tensor, float]:
    """(centers, sum of squared distances) after so many rounds."""
    for _ in range(rounds):
        sums = sums_by_center(points, centers)
        if distributed:
            sums = hvd.allreduce(sums, name="sums", op=hvd.Sum)
        centers = moved(centers, sums)
    sums = sums_by_center(points, centers)
    if distributed:
        sums = hvd.allreduce(sums, name="sums", op=hvd.Sum)
    return centers, sums[:, 3].sum().item()


def by_scikit_learn(points: torch.Tensor, start: torch.Tensor, rounds: int) -> float | None:
    """Its sum of squared distances from the same start; None if it is not installed."""
    if importlib.util.find_spec("sklearn") is None:
        return None
    from sklearn.cluster import KMeans

    found = KMeans(len(start), init=start.numpy(), n_init=1, max_iter=rounds, tol=0.0).fit(points.numpy())
    return float(found.inertia_)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--points", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=20)
    arguments = parser.parse_args(argv)
    hvd.init()
    everything = points_of_all_ranks(arguments.points)
    start = everything[:4].clone()
    own = everything[hvd.rank() :: hvd.size()]
    centers, inertia = kmeans(own, start, arguments.rounds, distributed=True)
    if hvd.rank() == 0:
        alone, serial = kmeans(everything, start, arguments.rounds, distributed=False)
        difference = (centers - alone).abs().max().item()
        print(f"{hvd.size()} rank(s): inertia {inertia:.6f}; one process: {serial:.6f}")
        print(f"largest difference of a center: {difference:.1e}")
        theirs = by_scikit_learn(everything, start, 100 * arguments.rounds)
        print("scikit-learn is not installed" if theirs is None else f"scikit-learn: {theirs:.6f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
