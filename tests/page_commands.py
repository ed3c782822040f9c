# ruff: noqa: E501 -- names of tests stand in one piece
"""Commands of pages that the suite does not run as they stand: for each, what it does instead.

A command is looked for as "page: command". All others are typed as they stand.
"""

from __future__ import annotations

import re

MORE = {
    r"^docs/(simulations|officer|data-sets)\.md: securefl (run|leave-one-out) ": (
        "--set run.rounds=2"
    ),
    r"^(README|docs/results/.*)\.md: securefl run ": "--set run.rounds=2",
    r": securefl reproduce (?!.*--list)": "--seeds 1",
    r": (OMP_NUM_THREADS=1 )?python benchmarks/engines\.py ": "--small --repeats 1",
    r": python benchmarks/gpu\.py ": "--device cpu --small --repeats 1",
    r": python benchmarks/pages\.py": "--runs 1 --rounds 1 --long-rounds 1",
    r": python benchmarks/random_sums\.py ": "--sums 3 --most 20",
    r": OMP_NUM_THREADS=1 python benchmarks/(encrypted_fedtan|fedtan_steps)\.py ": (
        "--rounds 1 --repeats 1"
    ),
    r": OMP_NUM_THREADS=1 python benchmarks/soak\.py ": "--clients 3 --rounds 2",
}
"""Words that are typed at a command's end, of which the last count: fewer rounds, seeds, or sums.

A table of `securefl reproduce` also has fewer rows, columns and rounds: see `short_recipe`.
"""
FEWER = {'"rounds": 20': '"rounds": 1', "range(6)": "range(2)"}
"""The same in a script that a command reads from the page."""
AUDIT = "properties/test_audit_cli.py::test_"
HOSPITALS = "properties/test_three_hospitals_page.py::test_three_hospitals_have_a_model"
SIGNED = "properties/test_signed_audit.py::test_members_sign_the_same_bytes_and_anybody_with_the_bundle_checks"
SHORT = "oracles/test_natural_in_short.py::test_"
BENCHMARKS = "properties/test_benchmarks.py::test_"
RUN_BY = {
    # Audits take a minute each: those of tests try a few models and steps.
    r": securefl audit .* --(sign|verify)": SIGNED,
    r": securefl audit .* --openings (?!.*--site)": f"{AUDIT}logs_alone_are_audited_where_no_data_are_given",
    r": securefl audit .* --site": f"{AUDIT}other_data_than_each_site_has_written_down_are_refused",
    r": securefl audit \S+ --full": f"{AUDIT}full_is_an_audit_from_end_to_end",
    r": (securefl audit [^-]*( --quick)?( --keys \S+)?( --out \S+)?$|diff )": (
        f"{AUDIT}a_run_is_audited_from_end_to_end_and_the_same_twice"
    ),
    r": python docs/audit_table\.py ": "properties/test_audited_demo.py::test_what_several_runs_say_alike_stands_once",
    r": python docs/audited_demo\.py ": "properties/test_audited_demo.py::test_a_verdict_stands_above_its_numbers",
    # Ten seconds each: those of tests have fewer steps.
    r": securefl privacy plan ": "properties/test_privacy_cli.py::test_the_noise_as_it_is_printed_is_enough",
    r": securefl privacy cost ": "properties/test_json_results.py::test_privacy",
    r"^docs/privacy\.md: securefl run job\.toml ": "properties/test_private_runs.py::test_a_budget_stops_the_run_before_it_is_exceeded",
    # Several processes, or several folders of files.
    r": securefl run --resume ": "properties/test_own_data_page.py::test_a_rehearsal_is_resumed_with_its_files",
    r": securefl officer serve ": "oracles/test_officer_processes.py::test_a_run_with_officers_is_that_of_a_simulation",
    r": securefl .* --metrics \d+": "forbidden/test_process_metrics.py::test_the_counts_of_a_run_add_up",
    r": securefl .* --log json": "forbidden/test_process_logs.py::test_json_lines_have_time_role_name_and_session_and_no_secret",
    r": securefl ((server|authority) serve|site join) ": HOSPITALS,
    r"^docs/tutorials/three-hospitals\.md: ": HOSPITALS,
    r": (python3 -m venv|\. |\S+/pip install --constraint) ?": HOSPITALS,
    r"^docs/tutorials/own-choices\.md: (mkdir|cp|pip) ": "properties/test_own_choices_page.py::test_its_package_gives_short_names",
    r"^docs/tutorials/own-choices\.md: python ": "properties/test_own_choices_page.py::test_its_python_runs",
    r"^docs/tutorials/own-choices\.md: ": "properties/test_own_choices_page.py::test_its_commands_run",
    r"^docs/operations\.md: ": "properties/test_operations_page.py::test_all_other_commands_run_in_their_order",
    r"^docs/processes\.md: securefl keys ": "properties/test_processes_page.py::test_its_lines_make_a_consortium",
    r"^docs/own-data\.md: securefl run ": "properties/test_own_data_page.py::test_the_rehearsal_runs",
    r"^docs/own-data\.md: securefl site review ": "forbidden/test_approval.py::test_what_is_approved_is_what_was_shown",
    r"^docs/own-data\.md: securefl evaluate ": HOSPITALS,
    r": securefl nvflare export ": "oracles/test_nvflare.py::test_a_job_holds_digests_and_no_secret",
    r": OMP_NUM_THREADS=1 python docs/notebooks\.py --times": "properties/test_notebooks.py::test_they_run_from_top_to_bottom",
    r": python docs/gallery\.py ": "properties/test_gallery.py::test_each_command_makes_its_picture",
    # Data sets' files are others': tests make some in the same form.
    r": securefl run --dataset tcga-brca ": "properties/test_survival_data.py::test_breast_cancer_is_divided_as_flamby_divides_it",
    r": securefl (run --dataset|reproduce) opt ": f"{SHORT}what_is_known_of_women_at_four_clinics_is_learnt",
    r": securefl run --dataset azpro ": "properties/test_survival_data.py::test_stays_are_read_from_the_packages_archive_by_hospital",
    r": securefl reproduce heart ": f"{SHORT}each_row_of_hearts_recipe_runs",
    r": securefl reproduce lung ": f"{SHORT}institutions_together_order_more_pairs_than_each_alone",
    r": securefl reproduce azpro ": f"{SHORT}a_linear_model_of_days_is_as_good_federated_as_centralised",
    r": securefl run --dataset digits-by-source ": "properties/test_digit_sources.py::test_a_run_of_three_sources_goes_its_rounds",
    r": securefl reproduce digits-by-source ": f"{SHORT}a_sources_own_bn_helps_the_mlp",
    r": securefl reproduce digits-by-source-cnn": f"{SHORT}a_sources_own_bn_helps_the_cnn",
    r": securefl (run --dataset|reproduce) digits-4-sources": f"{SHORT}its_own_batches_statistics_help_an_unseen_fourth_source",
    r": securefl reproduce fashion-mnist ": f"{SHORT}fedtan_repairs_bn_on_two_classes_a_client_in_fashions_files",
    r": securefl run --dataset ixi-tiny ": "properties/test_medical_files.py::test_a_run_on_ixi_tiny_is_scored_by_dice_at_each_hospital",
    r": securefl run --dataset isic2019 ": "properties/test_medical_files.py::test_a_run_on_isic2019_is_scored_at_each_centre",
    r": python docs/sealed_bytes\.py ": "properties/test_sealed_bytes.py::test_curves_are_drawn_beside_the_target",
    # Minutes each, without a shorter way in their options.
    r": python docs/bound_coverage\.py ": "oracles/test_bound_coverage.py::test_bounds_cover_where_they_hold",
    r": python docs/rows_from_gradients\.py ": "properties/test_rows_from_gradients.py::test_a_gradient_of_one_patient_gives_every_reading_to_a_hundredth_of_a_deviation",
    r": python benchmarks/ckks_sum\.py ": f"{BENCHMARKS}packed_statistics_take_a_six_hundredth_of_the_bytes_of_a_vector_per_tensor",
    r": python benchmarks/model_encryption\.py ": f"{BENCHMARKS}a_benchmark_writes_its_machine_beside_its_results",
    r": python benchmarks/profile_match\.py": f"{BENCHMARKS}a_match_takes_a_twentieth_of_the_bytes_and_with_keys_a_six_hundredth",
    r": python benchmarks/officers\.py": f"{BENCHMARKS}an_officer_answers_with_8_kb_for_each_of_its_groups",
    r": python benchmarks/engines\.py --jobs ray ": "oracles/test_ray.py::test_the_benchmark_of_engines_times_both_kinds_of_workers",
    r": python benchmarks/engines\.py --jobs cores ": f"{BENCHMARKS}a_round_is_timed_on_one_core_and_on_two_and_torch_has_its_threads_again",
    r": python benchmarks/sealed_digits\.py": "properties/test_sealed_precision.py::test_sealed_training_on_the_digits_ends_where_training_in_the_clear_does",
    r": python benchmarks/sealed_precision\.py": "properties/test_sealed_precision.py::test_encrypted_training_ends_where_training_in_the_clear_does",
    r": make demo": "properties/test_run_cli.py::test_the_demo_shows_four_runs_and_draws_its_picture",
}
"""Test that runs a command, or its parts, in short; by file and name, from `tests`."""
NOT_HERE = {
    r": (RAY_ADDRESS=\S+ .*|ray start .*)": ("cluster", "several machines"),
    r": (python benchmarks/peers/compare\.py|make peers)": (
        "environment",
        "it fetches three other tools, from the network",
    ),
    r": (python benchmarks/one_time_sum\.py|git worktree)": (
        "../before",
        "an older commit, which a shallow clone lacks",
    ),
    r": python - <<'END'\n\s+import ast": (
        "commit",
        "two older commits, which a shallow clone lacks",
    ),
    r": (npm .*|python docs/browser_check\.py )": (
        "axe-core",
        "it is fetched from the network; test_audit_browser.py and test_watch.py look at pages",
    ),
    r": nvflare ": ("NVIDIA FLARE", "it has an environment of its own: make nvflare"),
    r": apt-get ": ("apt-get", "it fetches from the network"),
    r": (pip|\S*/pip) ": ("install", "it fetches from the network"),
    r": git clone": ("install", "it fetches from the network"),
    r": make (test|check|docs)": ("make", "the suite itself is what it runs, or runs beside it"),
    r": (docker|podman|systemctl) ": ("machine", "another program, which is not here"),
    r": sbatch ": ("Slurm", "a cluster"),
    r": (tensorboard|mlflow) ": ("pip install", "another program, which stays until Ctrl-C"),
}
"""Need of a command that this machine or the suite's time lacks, in a word that its page has, and
why it is not run."""


def found(table, page, command):
    """Return the entry of a command in one of the tables; None where there is none."""
    entries = (
        entry for pattern, entry in table.items() if re.search(pattern, f"{page}: {command}")
    )
    return next(entries, None)
