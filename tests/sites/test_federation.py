"""A federation's folder and a site's: what is made, what is admitted, and what is refused in one line."""

import json
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from flnl.core.errors import UserError
from flnl.sites import federation, flower_environment, site_folder, units
from flnl.sites.federation import FederationFolder, Invitation
from flnl.sites.flower_environment import VARIABLE, Flower
from flnl.sites.site_folder import SiteFolder

PUBLIC = "ecdsa-sha2-nistp384 " + "A" * 180
OTHER = "ecdsa-sha2-nistp384 " + "B" * 180


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flower:
    """An environment whose keys are texts."""

    def keys(self: Flower, home: Path, what: str, folder: str, *hosts: str) -> None:
        made = {"authority": ("ca.key", "ca.crt"), "server": ("server.key", "server.crt"), "node": ("node", "node.pub")}
        for name in made[what]:
            (Path(folder) / name).write_text("BEGIN CERTIFICATE" if name == "ca.crt" else " ".join([PUBLIC, *hosts]))

    monkeypatch.setattr(Flower, "keys", keys)
    return Flower(tmp_path / "flower")


@pytest.fixture
def lung(flower: Flower, tmp_path: Path) -> FederationFolder:
    shared = ["dataset=image_folder", "dataset.image_size=64"]
    sites = ["north", "south", "east"]
    return federation.make(tmp_path / "lung", flower, "fl.example.org:8443", sites, classes=["a", "b's"], data=shared)


def test_a_federation_is_what_it_was_made_of(lung: FederationFolder) -> None:
    assert (lung.name, lung.address, lung.listen) == ("lung", "fl.example.org:8443", "0.0.0.0:8443")
    assert (lung.sites, lung.classes) == (("north", "south", "east"), ("a", "b's"))
    assert (lung.folder / "server.crt").read_text().split()[2:] == ["fl.example.org", "localhost", "127.0.0.1"]
    assert lung.folder.stat().st_mode & 0o077 == 0


def test_an_invitation_has_nothing_secret(lung: FederationFolder) -> None:
    text = (lung.folder / "invitation.toml").read_text()
    invited = Invitation.read(lung.folder / "invitation.toml")
    assert (invited.name, invited.address, invited.sites) == ("lung", "fl.example.org:8443", ("north", "south", "east"))
    assert (invited.classes, invited.ca) == (("a", "b's"), "BEGIN CERTIFICATE")
    assert str(lung.folder) not in text
    assert PUBLIC not in text


def test_a_site_has_what_the_invitation_says(lung: FederationFolder, flower: Flower, tmp_path: Path) -> None:
    site = site_folder.make(tmp_path / "lung-north", flower, lung.folder / "invitation.toml", "north")
    assert site == SiteFolder.read(tmp_path / "lung-north")
    assert (site.name, site.federation, site.server) == ("north", "lung", "fl.example.org:8443")
    assert (site.data, site.classes) == (("dataset=image_folder", "dataset.image_size=64"), ("a", "b's"))
    assert site.asks
    assert (site.policy.allow, site.policy.least_samples, site.policy.min_count) == ((), 50, 20)
    assert {path.name for path in site.folder.iterdir()} >= {"site.yaml", "secret.key", "node", "node.pub", "ca.crt"}
    assert (site.folder / "secret.key").stat().st_mode & 0o777 == 0o600
    assert site.folder.stat().st_mode & 0o077 == 0


def test_each_site_is_admitted_once_by_its_own_key(lung: FederationFolder, tmp_path: Path) -> None:
    key, other, private = tmp_path / "n.pub", tmp_path / "s.pub", tmp_path / "node"
    key.write_text(f"{PUBLIC} north\n")
    other.write_text(OTHER)
    private.write_text("-----BEGIN OPENSSH PRIVATE KEY-----\n" + "A" * 180)
    with pytest.raises(UserError, match="north, south, east: not admitted yet: flnl federation admit"):
        lung.demand_all()
    lung.admit(key, "north")
    lung.admit(key, "north")
    assert lung.admitted == {"north": lung.folder / "nodes" / "north.pub"}
    assert lung.admitted["north"].read_text() == f"{PUBLIC}\n"
    for path, name, reason in (
        (key, "west", "has no such site; it has north, south, east"),
        (key, "south", "is the key of north"),
        (other, "north", "has been admitted with another key"),
        (private, "south", "is a private key, which must not leave the site"),
        (tmp_path / "none", "south", "No such file"),
    ):
        with pytest.raises(UserError, match=reason):
            lung.admit(path, name)
    lung.admit(other, "south")
    with pytest.raises(UserError, match=r"^east: not admitted yet"):
        lung.demand_all()


@pytest.mark.parametrize(
    ("address", "sites", "reason"),
    [
        ("fl.example.org", ["a"], "should be HOST:PORT"),
        ("fl.example.org:0", ["a"], "should be HOST:PORT"),
        ("https://fl.example.org:1", ["a"], "should be HOST:PORT"),
        ("a:1", ["../a"], "a name has letters"),
        ("a:1", ["a", "a"], "different names"),
        ("a:1", [], "different names"),
        ("a:1", [""], "a name has letters"),
    ],
)
def test_a_wrong_federation_is_not_made(
    flower: Flower, tmp_path: Path, address: str, sites: Sequence[str], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        federation.make(tmp_path / "f", flower, address, sites)
    assert not (tmp_path / "f").exists()


def test_nothing_is_made_anew(lung: FederationFolder, flower: Flower, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is there already"):
        federation.make(lung.folder, flower, "a:1", ["a"])
    site_folder.make(tmp_path / "n", flower, lung.folder / "invitation.toml", "north")
    with pytest.raises(UserError, match="is there already"):
        site_folder.make(tmp_path / "n", flower, lung.folder / "invitation.toml", "north")
    with pytest.raises(UserError, match="is for the sites north, south, east, and not for west: set --name"):
        site_folder.make(tmp_path / "w", flower, lung.folder / "invitation.toml", "west")
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    "text", ["", "name = 3", "nonsense", 'name = "a"\naddress = "b:1"\nca = "x"\nsites = []\nclasses = []\ndata = []']
)
def test_what_is_no_invitation_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "i.toml").write_text(text)
    with pytest.raises(UserError, match=r"i\.toml"):
        Invitation.read(tmp_path / "i.toml")


@pytest.mark.parametrize(
    "word",
    [
        "dataset.normalize={_target_: torch.hub.load, repo_or_dir: x}",
        "dataset._target_=torch.hub.load",
        "dataset.root=/etc",
        "dataset.cache=~/x",
        "dataset.labels=../x",
        "dataset.root=here",
        "dataset.cache=here",
        "dataset=[a,b]",
        "dataset.name=${oc.env:HOME}",
        "dataset=a/b",
        "dataset@here=x",
        "+dataset.x=1",
        "~dataset.x",
        "dataset.image_size=1,2",
        "dataset.image_size=range(3)",
        "dataset.shape=[1,{a: 2}]",
        "method=fedavg",
        "datasets=x",
        "nothing",
    ],
)
def test_an_invitation_names_neither_code_nor_places(flower: Flower, tmp_path: Path, word: str) -> None:
    """A site would read or run what the server says."""
    with pytest.raises(UserError, match=r"^--data "):
        federation.make(tmp_path / "f", flower, "a:1", ["a"], data=[word])
    good = federation.make(tmp_path / "g", flower, "a:1", ["a"], data=["dataset=image_folder", "dataset.shape=[1,8,8]"])
    path = good.folder / "invitation.toml"
    read = tomllib.loads(path.read_text())
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in {**read, "data": [word]}.items()]
    path.write_text("".join(lines))
    with pytest.raises(UserError, match=r"invitation\.toml: data: "):
        Invitation.read(path)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"approve": "maybe"}, "approve=maybe should be ask or any"),
        ({"approv": "any"}, "approv is not a key"),
        ({"least_samples": 0}, "least_samples=0 should be 1 or more"),
        ({"least_samples": True}, "least_samples=True should be a int"),
        ({"max_epsilon": "much"}, "max_epsilon='much' should be a number"),
        ({"max_epsilon": -1}, "max_epsilon=-1 should be a number"),
        ({"allow": "LabelCounts"}, "allow='LabelCounts' should be a list"),
        ({"allow": [3]}, "allow should be a list of texts"),
        ({"data": ["seed=3"]}, "should be an override of dataset"),
        ({"server": "nowhere"}, "should be HOST:PORT"),
        ({"group": "no such group"}, "there is no such group here"),
        ({"counts": 1}, "counts=1 should be a bool"),
    ],
)
def test_a_wrong_value_of_a_site_is_named(
    lung: FederationFolder, flower: Flower, tmp_path: Path, values: dict[str, object], reason: str
) -> None:
    site = site_folder.make(tmp_path / "n", flower, lung.folder / "invitation.toml", "north")
    path = site.folder / "site.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **values}))
    with pytest.raises(UserError, match=reason):
        SiteFolder.read(site.folder)


def test_a_run_is_approved_by_its_key(lung: FederationFolder, flower: Flower, tmp_path: Path) -> None:
    site = site_folder.make(tmp_path / "n", flower, lung.folder / "invitation.toml", "north")
    assert site.approved == set()
    for key in ("a" * 64, "b" * 64):
        site.approve(key)
    assert site.approved == {"a" * 64, "b" * 64}
    with pytest.raises(UserError, match="should be the key of a run"):
        site.approve("a" * 8)
    for key in ("c" * 12 + "d" * 52, "c" * 12 + "e" * 52):
        site.note(key)
    assert site.approve("c" * 12 + "e") == "c" * 12 + "e" * 52
    with pytest.raises(UserError, match="several runs with a key that begins so"):
        site.approve("c" * 12)
    with pytest.raises(UserError, match="no run with a key that begins so"):
        site.approve("d" * 12)


def test_runs_that_were_asked_for_long_ago_are_forgotten(
    lung: FederationFolder, flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last ones are known, in whatever order their keys sort, and one that asks again stays."""
    monkeypatch.setattr(site_folder, "REMEMBERED", 2)
    site = site_folder.make(tmp_path / "n", flower, lung.folder / "invitation.toml", "north")
    for letter in "dcbdda":
        site.note(letter * 64)
    assert [site.approve(letter * 12)[0] for letter in "da"] == ["d", "a"]
    with pytest.raises(UserError, match="no run with a key that begins so"):
        site.approve("b" * 12)
    assert site.approved == {"a" * 64, "d" * 64}


def test_units_give_a_supernode_the_socket_alone(
    lung: FederationFolder, flower: Flower, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = site_folder.make(tmp_path / "sites" / "lung-north", flower, lung.folder / "invitation.toml", "north")
    site = replace(site, data=("dataset=image_folder", "dataset.root='/data/lung'", "dataset.labels=x.csv"))
    first, second, compose = units.text(site, "flower", tmp_path / "flower", "lena").split("\n# ")
    here = site.folder
    for line in ("User=lena", "PrivateNetwork=yes", "RestrictAddressFamilies=AF_UNIX", f"ReadWritePaths={here}"):
        assert f"\n{line}\n" in first
    assert f" -P -m flnl site {here} --no-supernode\n" in first
    for line in (
        *("DynamicUser=yes", "SupplementaryGroups=flower", f"LoadCredential=node:{here}/node"),
        *(f"TemporaryFileSystem={here.parent} /dev/shm:mode=1777", "InaccessiblePaths=-/data/lung"),
        f"BindReadOnlyPaths={here}/socket:/run/flnl-site-north",
    ):
        assert f"\n{line}\n" in second
    assert "--auth-supernode-private-key %d/node" in second
    assert 'socket="/run/flnl-site-north/site.sock"\'' in second
    read = yaml.safe_load(compose.partition("\n")[2])["services"]
    assert read["site"]["network_mode"] == "none"
    assert read["supernode"]["volumes"] == [
        f"{here}/socket:/run/flnl:ro",
        f"{here}/node:/run/keys/node:ro",
        f"{here}/ca.crt:/run/keys/ca.crt:ro",
    ]
    assert read["supernode"]["command"][:3] == ["flower-supernode", "--superlink", "fl.example.org:8443"]
    assert Path(read["supernode"]["build"]["context"], "requirements.txt").is_file()
    assert "secret.key" not in second + compose
    for words in (("++dataset.root=/data/a",), ("dataset.root=${oc.env:HERE}",)):
        monkeypatch.setenv("HERE", "/data/a")
        other = replace(site, data=("dataset=image_folder", *words))
        assert "\nInaccessiblePaths=-/data/a\n" in units.text(other, "flower", tmp_path / "flower", "lena")
    kept = replace(site, data=("dataset=image_folder", "dataset.root=/data/a", "dataset.cache=/data/kept"))
    assert "\nInaccessiblePaths=-/data/kept\n" in units.text(kept, "flower", tmp_path / "flower", "lena")
    assert f"\nInaccessiblePaths=-{here}/cache\n" in second
    (tmp_path / "far" / "lung").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "far" / "lung")
    linked = (f"dataset.root={tmp_path / 'linked'}", "dataset.labels=../labels.csv")
    other = replace(site, data=("dataset=image_folder", *linked))
    hidden = units.text(other, "flower", tmp_path / "flower", "lena")
    assert f"\nInaccessiblePaths=-{(tmp_path / 'far' / 'labels.csv').resolve()}\n" in hidden
    apart = replace(site, data=("dataset=image_folder", "dataset.root=/data/x/../a", "dataset.labels=../b/labels.csv"))
    hidden = units.text(apart, "flower", tmp_path / "flower", "lena")
    assert "\nInaccessiblePaths=-/data/a\nInaccessiblePaths=-/data/b/labels.csv\n" in hidden
    other = replace(site, data=("dataset=image_folder", "dataset.root=data/a"))
    with pytest.raises(UserError, match="root=data/a: a unit has no working folder"):
        units.text(other, "flower", tmp_path / "flower", "lena")
    with pytest.raises(UserError, match="/data/a b: a unit can name paths of"):
        units.text(
            replace(site, data=("dataset=image_folder", "dataset.root='/data/a b'")),
            "flower",
            tmp_path / "flower",
            "lena",
        )


def test_flower_is_where_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match="has no Flower: make it with flnl federation install-flower"):
        Flower.found()
    for name in (".venv-flower", "second", "third"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "flower-superlink").touch()
    assert Flower.found().folder == tmp_path / ".venv-flower"
    monkeypatch.setenv(VARIABLE, "second")
    assert Flower.found().folder == tmp_path / "second"
    assert Flower.found("third/bin").folder == tmp_path / "third"
    shutil.rmtree(tmp_path / "third")
    with pytest.raises(UserError, match="third has no Flower"):
        Flower.found("third")


def test_flowers_programs_see_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "src")
    seen = Flower(tmp_path).variables(tmp_path / "home")
    assert not {"WANDB_API_KEY", "PYTHONPATH"} & seen.keys()
    assert (seen["FLWR_TELEMETRY_ENABLED"], seen["FLWR_DISABLE_UPDATE_CHECK"]) == ("0", "1")
    assert {seen["HOME"], seen["FLWR_HOME"]} == {str(tmp_path / "home")}


def test_requirements_are_hashed_and_name_no_index() -> None:
    lines = flower_environment.REQUIREMENTS.read_text().splitlines()
    pinned = [i for i, line in enumerate(lines) if "==" in line and not line.startswith(" ")]
    assert len(pinned) > 30
    assert all("--hash=sha256:" in lines[i + 1] for i in pinned)
    assert not [line for line in lines if "://" in line or line.lstrip().startswith(("-i", "--index", "--extra"))]
    assert any(line.startswith("flwr==1.41.") for line in lines)
