"""What clients are selected by: profiles, losses, sizes and times, worked out from each model."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch
from by_hand import config
from by_hand import task as by_hand_task
from played import place, played
from torch.nn import functional

import securefl
from securefl.algorithms.algorithm import load_tensors
from securefl.exchange.profile_match import Profile, divergence, range_unit
from securefl.federation.ledger import SERVER
from securefl.federation.training import SELECTION, round_generator
from securefl.selection.afl import Afl
from securefl.selection.data_share import ByDataShare
from securefl.selection.fedprof import FedProf
from securefl.selection.selector import Standing

SIZES = (5, 9, 14, 8, 11, 7)
CLIENTS = tuple(f"client-{i}" for i in range(1, 7))
ALPHA, SEED = 0.02, 3
PLAIN = ("algorithm.name=fedavg", "selection.fraction=0.34", "algorithm.local_steps=2")
FEDPROF = (*PLAIN, "selection.name=fedprof", f"selection.alpha={ALPHA}")
FAR = 2
"""The place of a client whose data are so far off that its profile cannot be sealed as it is."""


def task(far=1.0):
    """Six clients, of whom one has its inputs `far` times as large, and a server's samples."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(30, 12, generator=rng, dtype=torch.float64)
    job = by_hand_task(sizes=SIZES, public=(x, torch.randint(4, (30,), generator=rng)))
    clients = list(job.clients)
    clients[FAR] = clients[FAR][0] * far, clients[FAR][1]
    return replace(job, clients=clients)


def model_of(job, state):
    model = copy.deepcopy(job.model)
    load_tensors(model, state)
    return model.eval()


def profile_by_hand(model, layer, x, version):
    """Moments of one layer's outputs over all samples at once."""
    seen = []
    handle = model.get_submodule(layer).register_forward_hook(lambda *of: seen.append(of[2]))
    with torch.no_grad():
        model(x)
    handle.remove()
    (h,) = seen
    return Profile(h.mean(dim=0), h.var(dim=0, correction=0), version)


def dense_layers(job):
    return [n for n, m in job.model.named_modules() if isinstance(m, torch.nn.Linear)]


def senders(each, name):
    return {e.sender for e in each.entries if e.name == name and e.receiver == SERVER}


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("far", [1.0, 40.0])
def test_each_divergence_is_that_of_the_rounds_own_profiles(which, far):
    """Everyone is asked once, then the selected alone, under the model that their round began with.

    The server publishes a unit; where a profile is in its range, no divergence shows it.
    """
    job = task(far)
    layer = dense_layers(job)[which]
    settings = [*FEDPROF, *([f'selection.layer="{layer}"'] if which else [])]
    run, shrunk = played(config(*settings, rounds=5), job), set()
    for each in run.rounds:
        asked = set(CLIENTS) if each.participants.round == 1 else set(each.participants.selected)
        assert senders(each, "profile") == asked == each.participants.measured.keys()
        model, version = model_of(job, each.before), each.before.round
        server = profile_by_hand(model, layer, job.public[0], version)
        unit = range_unit(server)
        for client in asked:
            made = profile_by_hand(model, layer, job.clients[place(client)][0], version)
            sealed = made.in_unit(unit).in_range()
            expected = divergence(made, server)
            if not torch.equal(sealed.variance_Q, made.in_unit(unit).variance_Q):
                shrunk.add(client)
                assert divergence(sealed, server.in_unit(unit)) < expected
                expected = divergence(sealed, server.in_unit(unit))
            assert each.participants.measured[client] == pytest.approx(expected, rel=1e-9)
    assert (CLIENTS[FAR] in shrunk) == (far > 1)
    assert any(len(each.participants.selected) < 6 for each in run.rounds)


def test_the_selector_goes_by_what_each_client_said_last():
    """A client that was not selected keeps the divergence of its last profile, and its score."""
    run, known = played(config(*FEDPROF, rounds=8), task()), {}
    selector = FedProf(alpha=ALPHA)
    for each in run.rounds:
        if not known:
            known = dict(each.participants.measured)
        standing = Standing(CLIENTS, divergence=known)
        rng = round_generator(SEED, each.before.round, SELECTION)
        assert tuple(each.participants.selected) == selector.select(standing, 2, rng)
        for client, score in each.participants.scores.items():
            assert score == pytest.approx(math.exp(-ALPHA * known[client]), rel=1e-12)
        assert each.participants.scores.keys() == set(CLIENTS)
        known |= each.participants.measured
    assert len({tuple(chosen) for chosen in run.selected}) > 2


@pytest.mark.parametrize("settings", [["data-share"], ["fedprof", "selection.alpha=theorem1"]])
def test_sizes_are_sent_once_and_drawn_by(settings):
    """By data share, and by theorem 1, which is the same: nobody is measured again."""
    chosen = [*PLAIN, *(f"selection.name={settings[0]}", *settings[1:])]
    run = played(config(*chosen, rounds=6), task())
    standing = Standing(CLIENTS, n_samples=dict(zip(CLIENTS, SIZES, strict=True)))
    selector = FedProf(alpha="theorem1") if settings[1:] else ByDataShare()
    for each in run.rounds:
        first = each.participants.round == 1
        assert senders(each, "selection/size") == (set(CLIENTS) if first else set())
        assert not each.participants.measured
        rng = round_generator(SEED, each.before.round, SELECTION)
        assert tuple(each.participants.selected) == selector.select(standing, 2, rng)
    assert {e.form for e in run.result.ledger.entries if e.name == "selection/size"} == {
        "plaintext"
    }


def test_afl_goes_by_the_loss_of_the_model_that_the_round_began_with():
    """Of everybody at first, then of the selected; sizes are sent once."""
    job, known = task(), {}
    afl = ["selection.name=afl", "selection.excluded=0.5", "selection.sharpness=0.5"]
    run = played(config(*PLAIN, *afl, rounds=8), job)
    selector, sizes = (
        Afl(excluded=0.5, sharpness=0.5, uniform=0.1),
        dict(zip(CLIENTS, SIZES, strict=True)),
    )
    for each in run.rounds:
        first = each.participants.round == 1
        asked = set(CLIENTS) if first else set(each.participants.selected)
        assert senders(each, "selection/loss") == asked == each.participants.measured.keys()
        assert senders(each, "selection/size") == (set(CLIENTS) if first else set())
        model = model_of(job, each.before)
        for client, loss in each.participants.measured.items():
            x, y = job.clients[place(client)]
            expected = functional.cross_entropy(model(x), y)
            assert loss == pytest.approx(float(expected.detach()), rel=1e-12)
        known = known or dict(each.participants.measured)
        rng = round_generator(SEED, each.before.round, SELECTION)
        drawn = selector.select(Standing(CLIENTS, loss=known, n_samples=sizes), 2, rng)
        assert tuple(each.participants.selected) == drawn
        known |= each.participants.measured


def test_cfcfm_takes_the_first_to_submit_and_then_those_who_waited():
    """Fastest first by the simulated round, and what each is due in bytes; last ones come later."""
    settings = [*PLAIN, "selection.name=cfcfm", "devices.preset=emnist", "selection.fraction=0.5"]
    run, last = played(config(*settings, rounds=7), task()), set()
    for each in run.rounds:
        seconds = {c: run.devices.cost(c, load).time_s for c, load in each.loads[: len(CLIENTS)]}
        assert seconds.keys() == set(CLIENTS)
        order = sorted(CLIENTS, key=lambda c: (c in last, seconds[c]))
        assert set(each.participants.selected) == set(order[:3])
        last = set(each.participants.selected)
    assert len({tuple(chosen) for chosen in run.selected}) > 1


def test_a_profile_that_is_refused_is_asked_for_anew_and_its_client_stays_away():
    """Moments that are not finite are an incident of every round; the others go on."""
    job = task()
    x, y = job.clients[1]
    job = replace(job, clients=[job.clients[0], (x * 1e160, y), *job.clients[2:]])
    run = played(config(*FEDPROF, rounds=3), job)
    for each in run.rounds:
        assert "client-2" not in each.participants.selected
        assert "client-2" not in each.participants.scores
        assert each.metrics.dropped == ("client-2",)
    assert {i.client for i in run.result.incidents} == {"client-2"}
    assert len(run.result.incidents) == 3


DIGITS = (
    "algorithm.name=fedavg",
    "algorithm.local_steps=2",
    "data.clients=50",
    "data.public=180",
    "data.partition=iid",
    'data.quality={irrelevant=0.15, blurred=0.2, "salt-and-pepper"=0.25}',
    "train.batch_size=16",
    "train.lr=0.1",
    "train.lr_drops=[]",
    "selection.name=fedprof",
)


@pytest.mark.parametrize(
    ("encrypt", "officers", "rounds"),
    [
        ("statistics,profiles", 1, 8),
        pytest.param("statistics,profiles", 1, 25, marks=pytest.mark.full),
        pytest.param("profiles", 3, 8, marks=pytest.mark.slow),
    ],
)
def test_encrypted_profiles_choose_the_clients_of_the_clear(encrypt, officers, rounds):
    """Of 50 clients of unequal quality, round for round, for the same seed."""
    plain, sealed = (
        played(securefl.load_config(None, [*DIGITS, f"run.rounds={rounds}", *more]))
        for more in (
            ["exchange.encrypt=none"],
            [f"exchange.encrypt={encrypt}", f"exchange.officers={officers}"],
        )
    )
    assert plain.selected == sealed.selected
    assert len({client for chosen in plain.selected for client in chosen}) > 15
    assert_alike(plain, sealed)


def assert_alike(plain, sealed):
    """Divergences as precise as the match is said to be, and none of them read off a profile."""
    for one, other in zip(plain.rounds, sealed.rounds, strict=True):
        assert one.participants.selected == other.participants.selected
        assert other.participants.measured == pytest.approx(
            dict(one.participants.measured), rel=1e-4, abs=1e-5
        )
        forms = {e.form for e in other.entries if e.name == "profile"}
        assert forms == {"ciphertext"}


@pytest.mark.parametrize("officers", [1, 3])
def test_the_match_chooses_the_clients_of_the_clear(officers):
    """Of six clients, one so far off that its profile is shrunk to what can be sealed."""
    job = task(40.0)
    plain, sealed = (
        played(config(*FEDPROF, *more, rounds=5), job)
        for more in ([], ["exchange.encrypt=profiles", f"exchange.officers={officers}"])
    )
    assert_alike(plain, sealed)
