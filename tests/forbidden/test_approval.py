"""A site that requires its own approval takes part in exactly the job that it has approved."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from click.testing import CliRunner
from processes import Site
from site_files import TABLES, written

import securefl
from securefl.build.own_data import site_job
from securefl.errors import ConfigError, DataError
from securefl.network.approval import APPROVED, Approval
from securefl.network.party import client_party
from securefl_cli.main import main
from securefl_keys import certificates

pytestmark = pytest.mark.usefixtures("quick", "no_hang")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A federation to look at."""
    return Site(tmp_path_factory.mktemp("made") / "site", encrypt="none")


@pytest.fixture(scope="module")
def text(site, tmp_path_factory):
    """What alice has approved."""
    return approved(site, "alice", tmp_path_factory.mktemp("approved") / "file.json").read_text()


def command(*args):
    return CliRunner().invoke(main, list(map(str, args)))


def approving(site, name, *more):
    own = ("--identity", site.folder / name, "--passphrase-file", site.passphrase_file(name))
    return command("site", "review", site.job, *own, "--approve", *more)


def approved(site, name, path):
    done = approving(site, name, "--out", path)
    assert done.exit_code == 0, done.output
    assert f"{name} approves of this" in done.output
    return path


def joining(site, name, *more):
    member = site.member(name, "client")
    return command("site", "join", site.job, *member, "--wait", "0", *more)


def refusal(site, path, *more, name="alice"):
    """Why a site does not take part with that approval."""
    done = joining(site, name, "--require-approval", "--approved", path, *more)
    assert done.exit_code == 2, done.output
    assert str(path) in done.output
    assert "securefl site review" in done.output
    return done.output


def test_what_is_approved_is_what_was_shown(site, text):
    """Settings, each message, the date, and by whom."""
    found = json.loads(text)
    shown = command("site", "review", site.job).output
    assert found["site"] == "alice"
    assert {one["name"] for one in found["leaves"]} >= {"update/parameters"}
    for one in found["leaves"]:
        assert one["name"][:20] in shown
    age = datetime.now(UTC) - datetime.fromisoformat(found["approved"])
    assert timedelta(-1) < age < timedelta(hours=1)
    assert found["epsilon"] == "none"
    assert found["shows_size"] is True


def test_a_site_takes_part_in_what_it_has_approved(site, tmp_path):
    """It calls the server then; without, it calls nobody. Who requires none needs none."""
    path = approved(site, "alice", tmp_path / "file.json")
    for more in (("--require-approval", "--approved", path), ("--approved", path), ()):
        done = joining(site, "alice", *more)
        assert done.exit_code == 1
        assert "nobody answers" in done.output
    path.unlink()
    assert "cannot be read (No such file" in refusal(site, path)


def test_an_approval_lies_in_the_folder_of_the_identity_by_default(site):
    path = site.folder / "bob" / APPROVED
    assert joining(site, "bob", "--require-approval").exit_code == 2
    assert approving(site, "bob").exit_code == 0
    assert path.exists()
    assert "nobody answers" in joining(site, "bob", "--require-approval").output


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ("train.lr=0.123", "train.lr"),
        ("run.rounds=3", "run.rounds"),
        ("sites.late=wait", "sites.late"),
    ],
)
def test_other_settings_are_not_approved(site, text, tmp_path, setting, name):
    """And what differs is named."""
    (path := tmp_path / "file.json").write_text(text)
    said = refusal(site, path, "--set", setting)
    assert f"approves of other settings than these: they differ in {name}" in said


def test_anothers_approval_is_none(site, text, tmp_path):
    """Also under this site's name."""
    (path := tmp_path / "file.json").write_text(text)
    assert "is the approval of 'alice', and this site is bob" in refusal(site, path, name="bob")
    path.write_text(json.dumps(json.loads(text) | {"site": "bob"}))
    assert "is not signed by bob's identity" in refusal(site, path, name="bob")


def forgeries(text, other):
    """Changed contents under the old signature, and signatures of others."""
    found = json.loads(text)
    leaves = found["leaves"]
    yield "settings", found | {"settings": other["settings"], "by_setting": other["by_setting"]}
    yield "date", found | {"approved": "2031-01-01T00:00:00Z"}
    yield "a message less", found | {"leaves": leaves[1:]}
    yield "sealed", found | {"leaves": [leaves[0] | {"sealed": True}, *leaves[1:]]}
    yield "epsilon", found | {"epsilon": "1"}
    yield "no signature", found | {"signature": ""}
    yield "another's signature", found | {"signature": other["signature"]}
    yield "a bit", found | {"signature": f"{int(found['signature'], 16) ^ 1:0128x}"}


def test_a_forged_approval_is_refused(site, text, tmp_path):
    """For whichever settings: those that it says it is for, or others."""
    (path := tmp_path / "file.json").write_text("")
    changed = ("--set", "train.lr=0.123")
    approving(site, "carol", "--out", tmp_path / "carol.json", *changed)
    other = json.loads((tmp_path / "carol.json").read_text())
    for _, forged in forgeries(text, other):
        path.write_text(json.dumps(forged))
        assert "is not signed by alice's identity" in refusal(site, path)
        assert "is not signed by alice's identity" in refusal(site, path, *changed)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[" * 10**5,
        b"\xff\xfe",
        b"x" * (2**20 + 1),
        b'{"format": "securefl-approval/3"}',
    ],
    ids=["empty", "nothing in it", "deep", "no text", "large", "of another version"],
)
def test_what_is_no_approval_is_refused_in_words(site, tmp_path, content):
    (path := tmp_path / "file.json").write_bytes(content)
    assert "Traceback" not in refusal(site, path)


def test_what_would_leave_now_must_be_what_was_approved(site, text, tmp_path):
    """Another release may send other messages under the same settings."""
    identity = site.identity("alice")
    found = Approval.model_validate_json(text)
    less = found.model_copy(update={"leaves": found.leaves[1:], "signature": ""})
    (path := tmp_path / "file.json").write_text(less.signed(identity.key).text())
    assert "other messages than this release would send" in refusal(site, path)
    own = found.model_copy(update={"code": "ab" * 32, "signature": ""})
    path.write_text(own.signed(identity.key).text())
    assert "other code, which the settings name" in refusal(site, path)


def test_an_expired_identity_neither_approves_nor_is_approved(tmp_path, monkeypatch):
    minute = timedelta(minutes=1)
    with monkeypatch.context() as patch:
        patch.setattr(certificates, "MEMBER_LIFETIME", 20 * minute)
        site = Site(tmp_path / "site", encrypt="none", earlier={"carol": 30 * minute})
    path = tmp_path / "file.json"
    done = approving(site, "carol", "--out", path)
    assert done.exit_code == 2
    assert "carol's certificate is valid from" in done.output
    assert not path.exists()
    identity = site.identity("carol")
    approval = Approval.of(site_job(site.config, None, None), "carol", datetime.now(UTC))
    path.write_text(approval.signed(identity.key).text())
    with pytest.raises(ConfigError, match="it signs and approves nothing now"):
        client_party(site.config, identity, tmp_path, approved=path)


def test_a_site_may_require_it_in_its_own_file(site, tmp_path):
    """Then of every command, and before the settings' data or code are touched."""
    files = written(tmp_path)
    own = files / "alice" / "tables.toml"
    own.write_text(own.read_text() + 'approval = "required"\n')
    config = securefl.load_config(None, [*TABLES, 'data.names=["alice", "bob", "carol"]'])
    identity = site.identity("alice")
    with pytest.raises(ConfigError, match=rf"{own.parent / APPROVED}: cannot be read"):
        client_party(config, identity, tmp_path, own)
    settings = [part for one in TABLES for part in ("--set", one)]
    member = ("--identity", site.folder / "alice")
    done = command(
        *("site", "review", *settings, "--set", 'data.names=["alice", "bob", "carol"]'),
        *("--data", own, *member, "--passphrase-file", site.passphrase_file("alice"), "--approve"),
    )
    assert done.exit_code == 0, done.output
    assert client_party(config, identity, tmp_path, own).name == "alice"
    (own.parent / "patients.csv").unlink()
    with pytest.raises(DataError):
        client_party(config, identity, tmp_path, own)
    more = config.model_copy(update={"run": config.run.model_copy(update={"rounds": 2})})
    with pytest.raises(ConfigError, match=r"differ in run.rounds"):
        client_party(more, identity, tmp_path, own)
    own.write_text(own.read_text().replace("required", "perhaps"))
    with pytest.raises(ConfigError, match="approval = 'perhaps'"):
        client_party(config, identity, tmp_path, own)


@pytest.mark.parametrize(
    "options", [["--approve"], ["--identity", "alice"], ["--out", "file.json"]], ids=" ".join
)
def test_half_of_an_approval_is_misuse(site, options):
    done = command("site", "review", site.job, *options)
    assert done.exit_code == 2
    assert "Usage" in done.output


def test_nobody_approves_of_a_job_without_it(site, tmp_path):
    """Nor under another name than its identity has."""
    path = tmp_path / "file.json"
    done = approving(site, "alice", "--out", path, "--set", 'data.names=["x", "y", "z"]')
    assert done.exit_code == 2
    assert "none of the settings' data.names" in done.output
    assert approving(site, "alice", "--out", path, "--name", "bob").exit_code == 2
    assert not path.exists()
