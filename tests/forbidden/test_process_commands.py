"""The commands of the three processes: their help, their refusals, and what the server loads."""

import signal
import subprocess
import sys

import pytest
from click.testing import CliRunner
from processes import PASSPHRASE, SERVER, Site

from securefl.runs.folder_files import MODEL, TRAFFIC
from securefl.runs.folder_writer import RunFolder
from securefl_cli.main import main
from securefl_keys import layout

COMMANDS = [
    ["authority"],
    ["authority", "serve"],
    ["server"],
    ["server", "serve"],
    ["site"],
    ["site", "join"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_loads_no_torch(command):
    script = (
        "import sys\n"
        "from securefl_cli.main import main\n"
        f"try: main({[*command, '--help']!r})\n"
        "except SystemExit as end: code = end.code\n"
        "else: code = 0\n"
        "print('LOADED', sorted({'torch', 'tenseal', 'sklearn'} & set(sys.modules)))\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "LOADED []" in done.stdout
    assert "Example" in done.stdout


def test_the_server_and_the_client_load_no_module_with_a_secret_key():
    """None of CKKS: what seals keys at rest knows their own Ed25519 identities alone."""
    script = (
        "import sys\n"
        "import securefl.network.server, securefl.network.client\n"
        "import securefl_cli.serve, securefl_cli.site\n"
        "import securefl_keys.bundle\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.split())
    assert {"securefl.crypto.cards", "securefl_keys.identity"} <= loaded
    opening = ("crypto.card_secret", "exchange.officer", "network.authority")
    assert loaded.isdisjoint(f"securefl.{name}" for name in opening)
    of_the_folder = (
        "sealed_keys",
        "officer_card",
        "authority_keys",
        "consortium",
        "rotation",
    )
    assert loaded.isdisjoint(f"securefl_keys.{name}" for name in of_the_folder)


SERVICE = (
    "import asyncio, resource\n"
    "from securefl_cli.connection import run_until_done\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))\n"
    "async def work():\n"
    "    print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], flush=True)\n"
    "    await asyncio.sleep(60)\n"
    "run_until_done(work())\n"
)


@pytest.mark.skipif(sys.platform == "win32", reason="has no SIGTERM")
def test_a_service_opens_all_files_that_it_may_and_sigterm_ends_it_with_code_0():
    """And in a word; Ctrl-C is KeyboardInterrupt still."""
    ended = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        script = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + SERVICE
        )
        service = subprocess.Popen(
            [sys.executable, "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert service.stdout.readline() == "256\n"
        service.send_signal(number)
        _, said = service.communicate(timeout=20)
        ended[number] = service.returncode, said.splitlines()[-1]
    assert ended[signal.SIGTERM] == (0, "Stopped.")
    assert ended[signal.SIGINT] == (-signal.SIGINT, "KeyboardInterrupt")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A federation to look at."""
    return Site(tmp_path_factory.mktemp("made") / "site")


def serving(site, *more):
    member = site.member(SERVER, "server")
    return ["server", "serve", site.job, *member, "--out", site.folder / "run", *more]


def joining(site, *more):
    return ["site", "join", site.job, *site.member("alice", "client"), *more]


def opening(site, *more):
    return [
        *("authority", "serve", site.job, "--keys", site.keys),
        *("--passphrase-file", site.passphrase_file("authority"), *more),
    ]


def refused(*args, **environment):
    done = CliRunner(env=environment).invoke(main, list(map(str, args)))
    assert done.exit_code == 2, done.output
    return done.output


def test_the_server_does_not_start_with_a_passphrase_in_its_environment(site):
    """Whosever it is: others may read /proc, and a child of the server would have it too."""
    said = refused(*serving(site), SECUREFL_PASSPHRASE=PASSPHRASE)
    assert "a server's environment is to hold no secret" in said
    assert PASSPHRASE not in said
    assert not (site.folder / "run").exists()


def test_the_wrong_partys_folder_is_refused(site):
    """An identity of another role, and a bundle of another role."""
    own = ["--identity", site.folder / "alice", "--passphrase-file", site.passphrase_file("alice")]
    said = refused(*serving(site, *own))
    assert "alice's certificate is for the role client, not for server" in said
    said = refused(*joining(site, "--bundle", site.folder / "bundles/server"))
    assert "for the role server, not client" in said


def test_an_identity_of_another_consortium_is_refused(site, tmp_path):
    other = Site(tmp_path / "other", consortium="Süd")
    said = refused(*joining(site, "--bundle", other.folder / "bundles/client"))
    assert "consortium 'Süd' has not issued" in said


@pytest.mark.parametrize(
    ("command", "key", "who"),
    [
        (joining, "alice/identity.key", "alice"),
        (serving, f"{SERVER}/identity.key", SERVER),
        (opening, "keys/authority/secret.key", "authority"),
    ],
)
def test_a_key_that_others_may_read_is_refused(site, command, key, who):
    (site.folder / key).chmod(0o644)
    try:
        assert "chmod" in refused(*command(site))
    finally:
        (site.folder / key).chmod(0o600)


def test_the_wrong_passphrase_is_refused(site):
    wrong = ("--passphrase-file", site.passphrase_file("bob"))
    for command in (joining, serving, opening):
        assert "does not open" in refused(*command(site, *wrong))


def test_a_folder_without_a_consortium_serves_nobody(site, keys):
    assert str(layout.CA_CERTIFICATE) in refused(*opening(site, "--keys", keys))


def test_a_client_whose_name_the_settings_do_not_have_is_refused(site):
    said = refused(*joining(site, "--set", 'data.names=["anna", "bob", "carol"]'))
    assert "'alice' is no client of these settings, which name anna, bob, carol" in said


def test_an_address_that_is_none_is_refused(site):
    assert "write HOST:PORT" in refused(*joining(site, "--server", "localhost"))


def test_a_complete_run_is_no_failure_to_who_starts_its_server_again(site, tmp_path):
    """As whoever supervises a server does that was killed at its end."""
    folder = RunFolder.create(tmp_path / "run", site.config)
    for name in (MODEL, TRAFFIC):
        (folder.path / name).touch()
    done = CliRunner().invoke(main, list(map(str, serving(site, "--out", folder.path))))
    assert done.exit_code == 0, done.output
    assert "no round is left" in done.output


def test_a_folder_that_no_restart_makes_the_servers_ends_it_with_code_2(site, tmp_path):
    """A run of other settings, one that nobody joins, or one that another server is at work on."""
    folder = RunFolder.create(tmp_path / "run", site.config)
    own = ("--out", folder.path)
    assert "run of other settings" in refused(*serving(site, *own, "--set", "train.lr=0.123"))
    assert "name nobody new" in refused(*serving(site, *own, "--admit", "dora"))
    with folder.locked():
        assert "another process is at work on this run" in refused(*serving(site, *own))
