"""What rounds cost simulated devices, against the ledger's bytes and FedProf's Eqs. (9)-(16)."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from by_hand import BATCH, averaged, batches, config, mean, sgd, steps
from by_hand import task as by_hand_task
from played import place, played

import securefl
from securefl.federation.ledger import SERVER
from securefl.federation.message import CARD
from securefl.types import Kind

SIZES = (5, 9, 14, 8, 11, 7)
STEPS = 2
FIRST = {"profile", "profile/means", "profile/variances", "selection/size", "selection/loss"}
"""What answers before the first selection are made of."""
DEVICES = ("devices.preset=emnist", "algorithm.name=fedavg", f"algorithm.local_steps={STEPS}")
RANDOM = ("selection.name=random", "selection.fraction=0.5")
FEDPROF = ("selection.name=fedprof", "selection.fraction=0.5")


def task():
    """Six clients, and samples that the server profiles."""
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(30, 12, generator=rng, dtype=torch.float64)
    return by_hand_task(sizes=SIZES, public=(x, torch.randint(4, (30,), generator=rng)))


def sent(entries, client):
    """Bytes down, up, and of profiles or losses, of one client in these messages.

    Not of its cards, which it sends once a run.
    """
    entries = [e for e in entries if e.name != CARD]
    down = sum(e.bytes for e in entries if e.receiver == client)
    answers = FIRST - {"selection/size"}
    up = [e for e in entries if e.sender == client and e.receiver == SERVER]
    measured = [e.bytes for e in up if e.name in answers]
    rest = sum(e.bytes for e in up if e.name not in answers)
    return down, rest, sum(measured) if measured else None


def seconds_and_watt_hours(table, device, n_samples, epochs, amounts):
    """Eqs. (10)-(16), worked out from the bytes."""
    down_bytes, up_bytes, profile_bytes = amounts
    rate = device.bandwidth_mhz * 1e6 * math.log2(1 + 10 ** (table.snr_db / 10))
    hertz = device.clock_ghz * 1e9
    epoch_s = n_samples * table.bits_per_sample * table.cycles_per_bit / hertz
    comm_s = 8 * down_bytes / rate + 8 * up_bytes / (0.5 * rate)
    train_s = epochs * epoch_s
    generate_s, carry_s = 0.0, 0.0
    if profile_bytes is not None:
        generate_s, carry_s = epoch_s, 8 * profile_bytes / (0.5 * rate)
    computing_w = 0.7 * device.clock_ghz**3
    joules = 0.75 * (comm_s + carry_s) + computing_w * (train_s + generate_s)
    return comm_s + train_s + generate_s + carry_s, joules / 3600


def epochs_of(n, n_steps=STEPS):
    return n_steps * min(n, BATCH) / n


def parts(each, is_first):
    """A round's messages: those before the first selection, and the others."""
    if not is_first or not FIRST & {e.name for e in each.entries}:
        return [], each.entries
    reads_data = any(e.name != "selection/size" for e in each.entries if e.name in FIRST)
    names = FIRST | ({"profile/unit"} if reads_data else set())
    before = [
        e for e in each.entries if e.name in names or (reads_data and e.name.startswith("model/"))
    ]
    return before, [e for e in each.entries if e not in before]


CASES = {
    "fedavg": RANDOM,
    "fedavg, encrypted": (*RANDOM, "exchange.encrypt=model"),
    "everyone": (),
    "fedtan, encrypted": (*RANDOM, "algorithm.name=fedtan", "exchange.encrypt=statistics"),
    "fixbn": (*RANDOM, "algorithm.name=fixbn", "algorithm.switch=3"),
    "scaffold": (*RANDOM, "solver.name=scaffold"),
    "by data": ("selection.name=data-share", "selection.fraction=0.5"),
    "afl": ("selection.name=afl", "selection.fraction=0.5"),
    "cfcfm": ("selection.name=cfcfm", "selection.fraction=0.5"),
    "fedprof": FEDPROF,
    "theorem 1": (*FEDPROF, "selection.alpha=theorem1"),
    "fedprof, sealed": (*FEDPROF, "exchange.encrypt=profiles"),
    "fedprof, all sealed": (*FEDPROF, "exchange.encrypt=statistics,profiles"),
    "fedprof, officers": (*FEDPROF, "exchange.encrypt=profiles", "exchange.officers=3"),
    "singlenet": ("algorithm.name=singlenet",),
}


@pytest.mark.parametrize("case", CASES)
def test_the_simulated_round_is_that_of_the_ledgers_messages(case):
    """Loads are the messages to the byte, and clock and energy the paper's equations of them."""
    run = played(config(*DEVICES, *CASES[case], rounds=6), task())
    table = run.devices.specification
    for each in run.rounds:
        is_first, chosen = each.participants.round == 1, each.participants.selected
        before, during = parts(each, is_first)
        asked = SIZES if before else ()
        time_s, energy_wh = 0.0, 0.0
        for i, n in enumerate(asked):
            client = f"client-{i + 1}"
            noted, load = each.loads[i]
            amounts = sent(before, client)
            assert noted == client
            assert amounts == (load.download_bytes, load.upload_bytes, load.profile_bytes)
            spent = seconds_and_watt_hours(table, run.devices.devices[client], n, 0, amounts)
            time_s, energy_wh = max(time_s, spent[0]), energy_wh + spent[1]
        found = dict(each.loads[-len(chosen) :])
        assert found.keys() == chosen.keys()
        longest = 0.0
        for client in chosen:
            n, load, amounts = SIZES[place(client)], found[client], sent(during, client)
            assert amounts == (load.download_bytes, load.upload_bytes, load.profile_bytes)
            assert load.n_samples == n
            spent = seconds_and_watt_hours(
                table, run.devices.devices[client], n, epochs_of(n), amounts
            )
            longest, energy_wh = max(longest, spent[0]), energy_wh + spent[1]
        assert each.metrics.simulated_s == pytest.approx(time_s + longest, rel=1e-12)
        assert each.metrics.energy_wh == pytest.approx(energy_wh, rel=1e-12)


def test_a_client_of_the_last_round_gets_the_news_and_any_other_one_everything():
    """Frozen statistics are no news; who stayed away a round is sent the whole model again."""
    settings = [*DEVICES, *RANDOM, "algorithm.name=fixbn", "algorithm.switch=3"]
    run, last, seen = played(config(*settings, rounds=10), task()), {}, set()
    for each in run.rounds:
        values = {
            kind: sum(v.numel() for v in t.values()) for kind, t in each.before.tensors.items()
        }
        for client in each.participants.selected:
            got = {
                e.kind: (e.n_values, e.bytes)
                for e in each.entries
                if e.receiver == client and e.name.startswith("model/")
            }
            fresh = last.get(client) == each.participants.round - 1
            frozen = each.participants.round > 4
            kinds = {Kind.PARAMETERS} if fresh and frozen else set(values)
            assert got == {kind: (values[kind], 8 * values[kind]) for kind in kinds}
            seen.add((fresh, frozen))
            last[client] = each.participants.round
    assert len(seen) == 4


def test_encryption_makes_the_round_longer():
    """Ciphertexts go up; so it takes more seconds and more energy, round by round."""
    plain, sealed = (
        played(config(*DEVICES, *FEDPROF, f"exchange.encrypt={encrypt}", rounds=3), task())
        for encrypt in ("none", "model")
    )
    assert plain.selected == sealed.selected
    for one, other in zip(plain.rounds, sealed.rounds, strict=True):
        assert one.metrics.simulated_s < other.metrics.simulated_s
        assert one.metrics.energy_wh < other.metrics.energy_wh


def test_a_size_is_asked_for_without_the_model():
    """Before the first selection by data share nobody is sent a model; then the selected are."""
    run = played(config(*CASES["by data"], rounds=3), task())
    first = run.rounds[0]
    assert {e.sender for e in first.entries if e.name == "selection/size"} == {
        f"client-{i}" for i in range(1, 7)
    }
    got = {e.receiver for e in first.entries if e.name.startswith("model/")}
    assert got == first.participants.selected.keys()


# --- late and lost clients ---


def by_hand(job, rounds):
    """FedAvg of those who were present; a round without anyone leaves the model as it is."""
    model = copy.deepcopy(job.model)
    for done, times in enumerate(rounds):
        locals_ = []
        for client in times:
            local = copy.deepcopy(model).train()
            steps(local, sgd(local, 0.0), batches(job, done, place(client), STEPS))
            locals_.append(averaged(local))
        sizes = [n * min(SIZES[place(client)], BATCH) for client, n in times.items()]
        if times:
            shares = [size / sum(sizes) for size in sizes]
            model.load_state_dict(mean(shares, locals_), strict=False)
    return model


def assert_by_hand(run, job):
    expected = averaged(by_hand(job, [each.times for each in run.rounds]))
    torch.testing.assert_close(averaged(run.result.model), expected, atol=1e-12, rtol=1e-12)


def times_of(each, run):
    """Seconds of each selected client's round."""
    loads = each.loads[-len(each.participants.selected) :]
    return {client: run.devices.cost(client, load).time_s for client, load in loads}


def test_late_clients_do_not_count_and_the_round_lasts_till_the_deadline():
    """Who is late has the model all the same; the round's mean is over those who were in time."""
    job = task()
    free = played(config(*DEVICES, *RANDOM, rounds=6), job)
    every = sorted(s for each in free.rounds for s in times_of(each, free).values())
    deadline = every[len(every) // 2]
    run = played(config(*DEVICES, *RANDOM, f"devices.deadline_s={deadline}", rounds=6), job)
    assert run.selected == free.selected
    for each in run.rounds:
        spent = times_of(each, run)
        late = {client for client, s in spent.items() if s > deadline}
        assert set(each.participants.late) == late
        assert each.participants.present == tuple(
            c for c in each.participants.selected if c not in late
        )
        assert each.metrics.simulated_s == (deadline if late else max(spent.values()))
        assert not late & {e.sender for e in each.entries if e.name.startswith("update/")}
    assert any(each.participants.late and each.participants.present for each in run.rounds)
    assert_by_hand(run, job)


def test_the_first_profiles_come_before_the_deadline_counts():
    """A deadline is the round's; that everybody is profiled once takes what it takes."""
    run = played(config(*DEVICES, *FEDPROF, "devices.deadline_s=1e-6", rounds=2), task())
    first, second = run.rounds
    assert first.metrics.simulated_s > 1e-3
    assert second.metrics.simulated_s == 1e-6
    assert not first.participants.present
    assert_by_hand(run, task())


def test_lost_clients_do_not_count_and_are_sent_everything_anew():
    """A lost client may not have got the model; nobody waits for it without a deadline."""
    job = task()
    run = played(config(*DEVICES, *RANDOM, "devices.dropout=0.3", rounds=12), job)
    lost_before, again = set(), 0
    for each in run.rounds:
        participants, spent = each.participants, times_of(each, run)
        assert set(participants.lost) <= participants.selected.keys()
        assert participants.present == tuple(
            c for c in participants.selected if c not in participants.lost
        )
        in_time = [spent[client] for client in participants.present]
        assert each.metrics.simulated_s == max(in_time, default=0.0)
        whole = {f"model/{kind}" for kind in each.before.tensors}
        for client in participants.selected.keys() & lost_before:
            got = {e.name for e in each.entries if e.receiver == client and e.exchange == 0}
            assert got == whole
            again += 1
        lost_before = set(participants.lost)
    assert again
    assert_by_hand(run, job)


@pytest.mark.parametrize(("encrypt", "least"), [("none", 1), ("model", 3)])
def test_a_round_with_too_few_clients_passes(encrypt, least, key_set):
    """The model stays, nothing is sent up or opened, and the next round sends no news of it."""
    settings = [*DEVICES, "selection.name=random", "selection.fraction=0.67"]
    rounds = [*settings, "devices.dropout=0.6", f"exchange.encrypt={encrypt}"]
    job = task()
    run = played(config(*rounds, rounds=14), job, key_set)
    passed, stayed = [], set()
    for each in run.rounds:
        came = [c for c in each.participants.selected if c not in each.participants.lost]
        assert each.participants.present == (tuple(came) if len(came) >= least else ())
        assert each.after.round == each.before.round + 1
        if stayed:  # who has the model of a round that passed has this one, too
            told = {e.receiver for e in each.entries if e.name.startswith("model/")}
            assert not told & stayed
            stayed &= each.participants.selected.keys() - set(each.participants.lost)
        if not each.participants.present:
            passed.append(each)
            assert each.after.tensors is each.before.tensors
            assert {e.sender for e in each.entries} <= {SERVER}
            assert each.metrics.upload_bytes == 0
            stayed = set(came)
        else:
            stayed = set()
    assert passed
    assert len(passed) < 14
    assert {o.round for o in run.result.openings}.isdisjoint(e.participants.round for e in passed)
    if encrypt == "none":
        assert_by_hand(run, job)
    else:
        a = averaged(by_hand(job, [each.times for each in run.rounds]))
        b = averaged(run.result.model)
        assert max(float((a[name] - b[name]).abs().max()) for name in a) < 1e-5


@pytest.mark.parametrize("share", [0.25, 0.3, 0.5])
def test_a_round_with_too_few_clients_to_refine_any_passes(share):
    """FNR-FL's rounds have one client to refine and three others, or they pass."""
    settings = [*DEVICES, "fnr.name=matched", f"fnr.share={share}", "fnr.epochs=1"]
    run = played(config(*settings, "devices.dropout=0.3", rounds=14), task())
    least = min(n for n in range(1, 7) if 1 <= math.floor(n * share) <= n - 3)
    for each in run.rounds:
        came = [c for c in each.participants.selected if c not in each.participants.lost]
        assert each.participants.present == (tuple(came) if len(came) >= least else ())
    assert {bool(each.participants.present) for each in run.rounds} == {True, False}


def test_without_selection_clients_drop_out_too():
    """All are selected, and the mean is of those who are left."""
    job = task()
    run = played(config(*DEVICES, "devices.dropout=0.5", rounds=6), job)
    assert all(len(chosen) == 6 for chosen in run.selected)
    assert {len(each.times) for each in run.rounds} - {6}
    assert_by_hand(run, job)


def test_who_drops_out_does_not_change_who_is_selected():
    """The draws of losses and of clients are apart."""
    one, other = (
        securefl.load_config(None, [*RANDOM, "run.rounds=8", *more, "exchange.encrypt=none"])
        for more in (["algorithm.name=fedavg"], ["algorithm.name=fedavg", "devices.dropout=0.5"])
    )
    assert played(one, task()).selected == played(other, task()).selected
