"""The comparison with peers: everybody does the same job."""

import json

import pytest
import torch

from securefl.models.build import build_model


def test_the_lenet_is_lecuns_in_size(benchmark):
    """61 706 parameters: C5 and F6 with 120 and 84 units, fully connected."""
    model = benchmark("engine_jobs").lenet5()
    assert sum(parameter.numel() for parameter in model.parameters()) == 61_706


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet20"])
def test_the_peers_train_the_same_model(benchmark, name):
    """Tensor by tensor, and so that the same weights give the same outputs."""
    job = benchmark("jobs").JOBS[name]
    ours = build_model(name, "batch", in_channels=3, n_features=784, n_classes=10)
    theirs = benchmark("models").made(name)
    own, other = ours.state_dict(), theirs.state_dict()
    assert [value.shape for value in own.values()] == [value.shape for value in other.values()]
    theirs.load_state_dict(dict(zip(other, own.values(), strict=True)))
    x = torch.randn(4, *job.shape, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(theirs(x), ours(x))


def test_lenet_has_the_published_number_of_parameters(benchmark):
    """61 706, of five layers."""
    lenet = benchmark("models").made("lenet")
    assert sum(p.numel() for p in lenet.parameters()) == 61706
    assert lenet(torch.zeros(2, *benchmark("jobs").JOBS["lenet"].shape)).shape == (2, 10)


def test_the_jobs_that_are_compared_are_the_ones_that_the_figures_are_about(benchmark):
    """Clients, clients in a round, local steps and batch of each, and what SecureFL makes of it."""
    jobs = benchmark("jobs")
    sizes = {name: (job.n_clients, job.cohort, job.batch) for name, job in jobs.JOBS.items()}
    assert sizes == {
        "mlp": (100, 100, 32),
        "cnn": (20, 20, 32),
        "lenet": (500, 25, 32),
        "resnet20": (5, 5, 128),
    }
    for job in jobs.JOBS.values():
        config = benchmark("securefl_job").configured(job, "auto")
        assert config.exchange.encrypt == ()
        assert (config.algorithm.local_steps, config.train.batch_size) == (5, job.batch)
        everyone = config.selection.name == "all"
        assert everyone or round(config.selection.fraction * job.n_clients) == job.cohort
        assert everyone == (job.cohort == job.n_clients)


def test_a_comparison_leaves_the_rehearsals_out_and_tells_versions(
    benchmark, monkeypatch, tmp_path
):
    """With processes that tell what they would: the first three rounds are slow."""
    module = benchmark("compare")
    seconds = {"securefl": 1.0, "securefl-parallel": 2.0, "pfl": 3.0}

    def ran(tool, job, rounds):
        assert (job, rounds) == ("mlp", 5)
        return {"torch": "2"}, [99.0] * 3 + [seconds[tool]] * 2

    monkeypatch.setattr(module, "ran", ran)
    monkeypatch.setattr(module, "python_of", lambda peer: peer)
    path, page = tmp_path / "peers.json", tmp_path / "peers.md"
    arguments = ["--jobs", "mlp", "--peers", "pfl", "--rounds", "2", "--json", str(path)]
    (result,) = module.main([*arguments, "--out", str(page)])
    assert (result.median_s("pfl"), len(result.seconds["pfl"])) == (3.0, 6)
    assert json.loads(path.read_text())["results"][0]["versions"]["pfl"] == {"torch": "2"}
    assert "compare.py --jobs mlp --peers pfl --rounds 2 --repeats 3" in page.read_text()
    assert "| pfl | 3,000 ms | 3,000 ms | 3,000 ms | 3 |" in page.read_text()
