"""The benchmarks run, at a tiny size. What they measure of time is not for a test to judge."""

import json
from types import SimpleNamespace

import pytest
import torch

from securefl.crypto.params import SUMS
from securefl.exchange.one_time import OneTimeSealer
from securefl.exchange.plain import PlainChannel


def test_packed_statistics_take_a_six_hundredth_of_the_bytes_of_a_vector_per_tensor(
    benchmark, tmp_path
):
    """One ciphertext for 38 tensors: 14336 bytes against 8.9 MB."""
    arguments = ["--clients", "3", "--repeats", "2", "--json", str(tmp_path / "sum.json")]
    (result,) = benchmark("ckks_sum").main(arguments)
    assert (result.n_clients, result.n_values) == (3, 1376)
    usual, packed, signed = (result.costs[way] for way in ("usual", "packed", "signed"))
    assert packed.client_bytes == SUMS.ciphertext_bytes == 14336
    assert packed.server_bytes == 3 * packed.client_bytes
    assert packed.client_bytes < signed.client_bytes < packed.client_bytes + 1000
    assert usual.client_bytes >= 590 * signed.client_bytes
    assert usual.server_bytes >= 590 * signed.server_bytes
    assert result.key_bytes["packed"] < result.key_bytes["signed"] < 2000
    assert max(packed.max_error, signed.max_error) < 1e-7
    assert usual.max_error < 1e-4


def test_a_benchmark_writes_its_machine_beside_its_results(benchmark, tmp_path):
    """Figures without their machine say nothing."""
    out = tmp_path / "model.json"
    arguments = ["--clients", "3", "--repeats", "1", "--json", str(out)]
    (result,) = benchmark("model_encryption").main(arguments)
    written = json.loads(out.read_text())
    assert set(written["machine"]) == {"processor", "cores", "system", "versions"}
    assert written["results"][0]["encrypted"]["client_bytes"] == result.encrypted.client_bytes


def test_a_whole_resnet_is_133_ciphertexts_and_1_8_times_its_float32_bytes(benchmark):
    """One polynomial of 7 bytes a coefficient, and as many values, for 4 bytes each."""
    (result,) = benchmark("model_encryption").main(["--clients", "3", "--repeats", "1"])
    assert (result.n_values, result.n_ciphertexts) == (271098, 133)
    assert result.encrypted.client_bytes == 133 * SUMS.ciphertext_bytes
    assert 1.75 < result.encrypted.client_bytes / result.plain.client_bytes < 1.76
    assert result.encrypted.max_error < 1e-7


@pytest.mark.full
def test_the_slowdown_is_told_by_phase_and_the_library_is_itself_again(benchmark, capsys):
    """The timers stand in the library's place only while the benchmark runs."""
    module, seal = benchmark("encrypted_fedtan"), OneTimeSealer.seal
    results = module.main(["--rounds", "2", "--repeats", "1"])
    assert OneTimeSealer.seal is seal
    assert [(result.moments, result.encrypt) for result in results] == [
        ("two-pass", "statistics"),
        ("two-pass", "model"),
        ("fused", "statistics"),
        ("fused", "model"),
    ]
    for result in results:
        assert set(result.plain_phase_s) == set(result.encrypted_phase_s) == set(module.PHASES)
        assert all(seconds > 0 for seconds in result.encrypted_phase_s.values())
    printed = capsys.readouterr().out
    assert all(phase in printed for phase in module.PHASES)


@pytest.mark.full
def test_steps_of_a_sealed_round_are_counted_and_take_more_than_the_libraries_alone(benchmark):
    """Each message is checked twice, by the server and by the authority."""
    module = benchmark("fedtan_steps")
    for result in module.main(["--rounds", "2", "--repeats", "1"]):
        calls = {step.name: step.calls for step in result.steps}
        more = {step.name: step.sealed_ms - step.plain_ms for step in result.steps}
        assert list(calls) == list(module.STEPS)
        assert min(calls.values()) > 0
        assert calls["verify signatures"] >= 2 * calls[module.SEALED]
        assert calls[module.SEALED] == 5 * calls[module.SUM_OPENED]
        assert all(bare.calls > 0 < bare.call_ms for bare in result.bare)
        assert 0 < result.bound_ms < sum(more.values())


def test_a_stopwatch_charges_the_inner_phase_alone(benchmark, monkeypatch):
    """On a clock that ticks once a look: one tick before the inner call, one in it, one after."""
    module = benchmark("encrypted_fedtan")
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=iter(range(4)).__next__))
    watch = module.Stopwatch()
    inner = watch.timed("inner", lambda: None)
    watch.timed("outer", inner)()
    assert dict(watch.seconds) == {"outer": 2, "inner": 1}


def test_a_match_takes_a_twentieth_of_the_bytes_and_with_keys_a_six_hundredth(benchmark):
    """49 kB against 994 kB for 512 elements; 52 kB against 36 MB with key and card."""
    result = benchmark("profile_match").main(["--clients", "2"])
    assert result.usual.client_bytes >= 20 * result.one_time.client_bytes
    assert result.usual.bytes_with_keys >= 600 * result.one_time.bytes_with_keys
    assert result.one_time.max_error < 1e-9


def test_an_officer_answers_with_8_kb_for_each_of_its_groups(benchmark, tmp_path):
    """Four bytes for each coefficient of a sum of keys, however long the clients' messages are."""
    out = tmp_path / "officers.json"
    results = benchmark("officers").main(["--clients", "4", "--repeats", "1", "--json", str(out)])
    assert [(costs.needed, costs.officers) for costs in results] == [(1, 1), (2, 3), (3, 5)]
    answers = [costs.step_bytes["an officer answers"] for costs in results]
    assert answers == [4 * SUMS.poly_degree * n_groups for n_groups in (1, 2, 6)]
    assert all(costs.step_bytes["a client seals"] == 14336 for costs in results)
    assert max(costs.max_error for costs in results) < 1e-7
    assert len(json.loads(out.read_text())["results"]) == 3


@pytest.mark.full
def test_one_time_keys_are_measured_beside_another_checkout(benchmark, capsys):
    """Of each in a process of its own; here the other one is this one too."""
    module = benchmark("one_time_sum")
    arguments = ["--repeats", "1", "--jobs", "0", "--before", str(module.HERE.parent)]
    (result,) = module.main(arguments)
    now, before = result.costs["now"], result.costs["before"]
    assert now.client_bytes == before.client_bytes == 14336
    assert max(now.max_error, before.max_error) < result.job.aim.error
    assert "0.7 of before" in capsys.readouterr().out


def test_a_sum_under_the_shared_key_is_that_of_its_checkout(benchmark, monkeypatch):
    """Of modules that are not here any more: what it asks them for, and how it hands it over."""
    asked = []

    def seal(values, weight):
        asked.append((values, weight))
        return b"sealed"

    plain = PlainChannel("float64")
    opener = SimpleNamespace(open=lambda *about: SimpleNamespace(values=about))
    keys = SimpleNamespace(public=1, adding=2, opener=lambda *_: opener)
    rule = SimpleNamespace(precision_bits=30)
    policy = SimpleNamespace(flooding=None, rule_for=lambda _name: rule)
    modules = {
        "ckks": SimpleNamespace(
            CkksSealer=lambda _: SimpleNamespace(seal=seal), CkksAdder=lambda _: plain
        ),
        "keyset": SimpleNamespace(KeySet=SimpleNamespace(ephemeral=lambda: keys)),
        "policy": SimpleNamespace(Policy=lambda: policy),
    }
    module = benchmark("shared_key_way")
    monkeypatch.setattr(module, "import_module", lambda name: modules[name.rpartition(".")[2]])
    way = module.SharedKeyWay(3, 5)
    assert way.seal(0, "values", 0.5) == [b"sealed"]
    assert asked == [("values", 0.5)]
    assert way.start().running is not None
    assert way.open(b"total") == (b"total", 3, 30)


def test_a_private_step_is_measured_each_way(benchmark, tmp_path):
    """Beside the plain one, of one model."""
    path = tmp_path / "steps.json"
    arguments = ["--jobs", "mlp, group", "--repeats", "1", "--json", str(path)]
    (result,) = benchmark("private_steps").main(arguments)
    assert list(result.seconds) == ["plain", "flat", "per-layer", "ghost"]
    assert json.loads(path.read_text())["results"][0]["job"] == "mlp, group"


QUICK_PARTS = (
    "mlp",
    "lenet5",
    "overhead",
    "fedtan-step",
    "phases",
    "fedtan-sealing",
    "clients",
    "widths",
    "short",
    "values",
)


FULL = pytest.mark.full


@pytest.fixture
def one_process(benchmark, monkeypatch):
    """Without the engines whose workers take seconds to start."""
    engines = benchmark("engine_jobs").ENGINES
    for name in [name for name, run in engines.items() if "workers" in run]:
        monkeypatch.delitem(engines, name)


@pytest.mark.full
@pytest.mark.usefixtures("one_process")
def test_each_engine_is_timed_or_left_out_with_a_reason(benchmark, tmp_path):
    """In every part of the benchmark of engines; a page, plots and JSON hold what was found."""
    page, found = tmp_path / "page.md", tmp_path / "found.json"
    arguments = ["--small", "--repeats", "1", "--out", str(page), "--json", str(found)]
    parts = benchmark("engines").main([*arguments, "--jobs", *QUICK_PARTS])
    rates = parts["mlp"].results[0]
    assert {"naive loop", "centralised", "auto"} <= rates.seconds.keys()
    assert set(benchmark("engine_jobs").ENGINES) <= rates.seconds.keys() | rates.refused.keys()
    for part in parts.values():
        for grid in part.grids.values():
            assert {len(row) for row in grid.rows} == {len(grid.columns)}
    written = page.read_text()
    assert all(f"<!-- part: {name} -->" in written for name in QUICK_PARTS)
    assert {p.name for p in tmp_path.glob("*.png")} == {"page-clients.png", "page-values.png"}
    n_results = sum(len(part.results) for part in parts.values())
    assert len(json.loads(found.read_text())["results"]) == n_results


@pytest.mark.full
@pytest.mark.usefixtures("one_process")
def test_a_job_on_a_gpu_is_timed_in_two_precisions(benchmark, tmp_path):
    """Tried on the CPU, whose memory is not told."""
    page, found = tmp_path / "gpu.md", tmp_path / "found.json"
    arguments = ["--device", "cpu", "--small", "--repeats", "1", "--out", str(page)]
    names = ["mlp", "lenet5", "fedtan-step", "mlp-steps", "graphs"]
    parts = benchmark("gpu").main([*arguments, "--json", str(found), "--jobs", *names])
    assert list(parts["lenet5"].grids) == ["One round, float32", "One round, bfloat16"]
    coarse = parts["lenet5"].results[1]
    assert coarse.job.endswith("bfloat16")
    engines = set(benchmark("gpu_ways").IN_PROCESS)
    assert engines <= coarse.seconds.keys() | coarse.refused.keys()
    written = page.read_text()
    assert written.startswith("# How fast clients are simulated on a GPU\n")
    assert all(f"<!-- part: {name} -->" in written for name in names)
    steps = parts["mlp-steps"].results[0]
    assert {"one by one", "vmap", "stacked"} <= steps.seconds.keys()
    assert {"graph of a client's step", "stacked, graph"} <= steps.refused.keys()
    assert json.loads(found.read_text())["results"][0]["name"] == "no GPU"


def test_jobs_that_would_begin_after_the_minutes_are_over_are_left_out(benchmark, capsys):
    """A GPU may be there for minutes only."""
    assert benchmark("gpu").main(["--device", "cpu", "--small", "--minutes", "0"]) == {}
    assert "resnet20 is left out: 0 minutes are over" in capsys.readouterr().out


def test_where_no_gpu_is_the_script_says_so(benchmark, monkeypatch, capsys):
    """In its words and its exit code."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit) as ended:
        benchmark("gpu").main([])
    assert ended.value.code == 2
    assert "sees no GPU here" in capsys.readouterr().err


def test_peaks_of_memory_are_of_each_way_alone(benchmark, monkeypatch):
    """By readings as a GPU would give them: 3 MiB before, 5 at most."""
    readings = {
        "reset_peak_memory_stats": None,
        "memory_allocated": 3 * 2**20,
        "max_memory_allocated": 5 * 2**20,
    }
    for name, reading in readings.items():
        monkeypatch.setattr(torch.cuda, name, lambda _device, reading=reading: reading)
    peaks = benchmark("gpu_ways")._peaks(benchmark("engine_jobs").MLP.small())
    assert peaks.mib == dict.fromkeys(
        ("naive loop", "centralised", "sequential", "vectorised", "auto"), 2.0
    )


def test_what_is_compared_takes_the_steps_of_a_round(benchmark, monkeypatch):
    """The naive loop and centralised training: as many batches, of the same size."""
    jobs, naive = benchmark("engine_jobs"), benchmark("naive")
    job = jobs.MANY.small()
    batches = []
    monkeypatch.setattr(naive, "_step", lambda *of: batches.append(len(of[2])))
    for way in benchmark("engine_ways").yardsticks(job, jobs.task_of(job)).values():
        batches.clear()
        way()
        assert batches == [4] * 2 * 2 == [job.batch_size] * job.n_selected * job.local_steps


@pytest.mark.full
@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("left_out", [("sequential", "vectorised"), pytest.param((), marks=FULL)])
def test_the_population_is_ten_times_as_large_and_fits_into_two_gibibytes(
    left_out, benchmark, monkeypatch
):
    """Measured in a process of its own, whose peak is not that of the tests' process."""
    for name in left_out:
        monkeypatch.delitem(benchmark("engine_jobs").ENGINES, name)
    part = benchmark("engines").main(["--small", "--repeats", "1", "--jobs", "population"])
    (growth,) = [r for r in part["population"].results if getattr(r, "engine", "") == "auto"]
    assert 50 < growth.peak_mib < 2048
    few, many = list(part["population"].grids.values())[1].columns[1:3]
    assert (few, many) == ("20 clients", "200 clients")


@pytest.mark.full
def test_encrypted_fedtan_is_told_by_phase(benchmark):
    """Nearly all of its phases take some time; those of the exchange are told together."""
    jobs, phases = benchmark("engine_jobs"), benchmark("engine_phases")
    job = jobs.Job("mlp", (4,), 3, 1, algorithm="fedtan", encrypt="statistics")
    settings = benchmark("engine_ways").Settings(1, note=lambda what: None)
    shares = phases.phases_part(job, settings).results[-1]
    assert shares.seconds["seal"] > 0
    assert 0 < shares.exchange_share() < 1


@pytest.mark.parametrize("processes", ["one_process", pytest.param("benchmark", marks=FULL)])
def test_a_round_is_timed_on_one_core_and_on_two_and_torch_has_its_threads_again(
    processes, request, benchmark, monkeypatch
):
    """Here both on one: on a busy machine two threads wait for each other for seconds."""
    request.getfixturevalue(processes)
    scaling, usual = benchmark("engine_scaling"), torch.get_num_threads()
    monkeypatch.setattr(scaling, "CORES", (1, 1))
    settings = benchmark("engine_ways").Settings(1, small=True, note=lambda what: None)
    grids = scaling.cores_part(settings).grids
    assert [rows.columns for rows in grids.values()] == [("way", "1 core", "2 cores", "ratio")] * 2
    assert torch.get_num_threads() == usual


def test_a_page_keeps_its_introduction_and_the_parts_that_were_not_measured(benchmark, tmp_path):
    """What is measured again is replaced."""
    module, path = benchmark("engine_page"), tmp_path / "page.md"
    path.write_text(f"# Title\n\nBy hand.\n\n{module.MEASURED}\n")
    for figure in ("1 ms", "2 ms"):
        part = module.Part("Of A", {"Caption": module.Grid(("way", "time"), [["a", figure]])}, [])
        module.write_page(path, {"a": part}, {"a": "python a.py"}, "a machine")
        other = module.Part("Of B", {}, [], ["a note"])
        module.write_page(path, {"b": other}, {"b": "python b.py"}, "a machine")
    text = path.read_text()
    assert text.startswith("# Title\n\nBy hand.\n\n<!-- Below")
    assert "| a | 2 ms |" in text
    assert "1 ms" not in text
    assert text.count("## Of A") == text.count("## Of B") == text.count("- a note") == 1


def test_a_rehearsal_is_no_reading(benchmark):
    """Each way has one turn more than it has readings."""
    turns, calls = benchmark("turns"), []
    found = turns.in_turns({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 3)
    assert sorted(calls) == ["a"] * 4 + ["b"] * 4
    assert {way: len(seconds) for way, seconds in found.items()} == {"a": 3, "b": 3}


@pytest.mark.usefixtures("one_process")
@pytest.mark.full
def test_training_has_a_time_of_its_own_with_every_engine(benchmark):
    """Whoever calls the algorithm's client, for one client or for many."""
    jobs, ways = benchmark("engine_jobs"), benchmark("engine_ways")
    part = benchmark("engine_phases").phases_part(jobs.MLP, ways.Settings(1, small=True))
    assert {shares.engine for shares in part.results} == {"sequential", "vectorised", "auto"}
    for shares in part.results:
        assert shares.seconds["train"] > 0


@pytest.mark.full
def test_exchanges_over_loopback_are_timed(benchmark, monkeypatch, capsys):
    """Of more than a chunk, too; and a sealed one, role by role."""
    monkeypatch.setattr(benchmark("sealed_exchange"), "REPEATS", 1)
    found = benchmark("transport").main(["--clients", "3", "--sizes", "1000", "3000000"])
    assert [*found] == [1000, 3_000_000]
    assert all(ms > 0 for ms in found.values())
    lines = capsys.readouterr().out.splitlines()
    sealed = {line.split(":")[0].split(", ")[-1]: line for line in lines if "sealed" in line}
    assert sealed.keys() == {"READY before", "seal and sign", "check and add", "open", "in all"}
    assert not any(line.endswith(": 0.0 ms") for line in sealed.values())


@pytest.mark.full
def test_carriers_are_timed_beside_each_other(benchmark, monkeypatch, capsys):
    """An exchange of the same bytes with two sites, each a process; a row for each carrier."""
    carriers = benchmark("carriers")
    monkeypatch.setattr(carriers, "REPEATS", 2)
    monkeypatch.setenv("PYTHONPATH", "")  # which it sets
    here = [carrier for carrier in carriers.CARRIERS if "NVIDIA" not in carrier]
    arguments = ["--clients", "2", "--sizes", "1000", "2000000", "--by", *here]
    found = carriers.main(arguments)
    assert [*found] == here
    assert all([*times] == [1000, 2_000_000] for times in found.values())
    assert all(ms > 0 for times in found.values() for ms in times.values())
    rows = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines()[3:]]
    assert rows == here
