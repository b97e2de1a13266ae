"""The page of an audit: what it shows, how it is cut into files, and that names on it are nothing but text."""

import base64
import re
import time
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from flnl.audit.page import pictures, writing
from flnl.audit.page.pictures import LONGEST, check_pictures, thumbnails
from flnl.audit.page.writing import write_page
from flnl.audit.precision import below_cuts
from flnl.audit.result import Audit, WrongLabels
from flnl.console.terminal import visible
from flnl.core.errors import UserError
from flnl.data.dataset import Dataset
from flnl.data.images import ImageFiles, TensorImages
from flnl.data.preparations import Rows
from flnl.data.transforms import Transform
from tests.audit.pages import Read, audit, read, shards

HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "\"><script>alert('1')</script>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "<!--",
    "]]>&amp;&#60;b>",
    "line\u2028and\u2029paragraph\r\n\0",
    "=1+1",
    "../../../etc/passwd",
    "\udcff\udce9.png",
    "\u202egnp.exe",
    "$nonce ${nonce} {{nonce}}",
)
K = len(HOSTILE)


def data_set(images: Any, *, scale: float = 255.0) -> Dataset:
    labels = np.zeros(len(images), np.int64)
    transform = Transform(size=images.shape[1:], mean=(0.0,), std=(1.0,), scale=scale)
    return Dataset("toy", ("a", "b"), images, images, labels, transform, labels)


def image_of(uri: str | None) -> Image.Image:
    assert uri is not None
    kind, _, coded = uri.partition(";base64,")
    image = Image.open(BytesIO(base64.b64decode(coded, validate=True)))
    assert kind == f"data:image/{str(image.format).lower()}"
    return image


# ------------------------------------------------------------------------------------------------------------- names


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A page on which everything that can have a name has a hostile one."""
    (tmp_path / "hostile").mkdir()
    given = audit(
        2 * K,
        classes=HOSTILE,
        names=[*HOSTILE, *reversed(HOSTILE)],
        clients=K,
        client_names=HOSTILE,
        dataset=HOSTILE[0],
        notes=HOSTILE,
        issues=2 * K,
    )
    write_page(tmp_path / "hostile", given, None)
    return tmp_path / "hostile"


def test_hostile_names_add_no_element_and_no_attribute(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "tame").mkdir()
    plain = [f"name {i}" for i in range(K)]
    tame = audit(2 * K, classes=plain, names=plain * 2, clients=K, notes=tuple(plain), issues=2 * K)
    write_page(tmp_path / "tame", tame, None)
    assert read(hostile).tags == read(tmp_path / "tame").tags


def test_a_page_refers_to_nothing_outside(hostile: Path) -> None:
    page = read(hostile)
    urls = [v for _, name, v in page.values if name in ("src", "href", "action", "srcset", "style", "data", "content")]
    policy = next(v for v in urls if v.startswith("default-src"))
    nonce = re.search(r"'nonce-([\w+/]{22})'", policy)
    assert nonce
    assert policy == (
        f"default-src 'none'; img-src data:; style-src 'nonce-{nonce[1]}'; script-src 'nonce-{nonce[1]}' "
        "'strict-dynamic'; base-uri 'none'; form-action 'none'"
    )
    assert Counter(u for u in urls if u != policy) == Counter(
        ["width=device-width, initial-scale=1", "light dark", "no-referrer", "#suspects"]
    )
    assert [v for tag, name, v in page.values if name == "nonce"] == [nonce[1]] * 3
    assert not [name for _, names in page.tags for name in names if name.startswith("on")]
    assert len(page.scripts) == 2


def test_names_come_back_from_the_scripts(hostile: Path) -> None:
    found, kept = read(hostile).data, shards(hostile)
    assert tuple(found["classes"]) == HOSTILE
    assert found["suspects"]["sample"] == [*HOSTILE, *reversed(HOSTILE)][::-1]
    assert len(kept) == 1
    source = b"".join(file.read_bytes() for file in (hostile / "pages").iterdir())
    assert not re.search(rb"[<>&\x80-\xff]", source)


def test_names_are_shown_as_text(hostile: Path) -> None:
    shown = " ".join(read(hostile).texts)
    for name in HOSTILE:
        assert visible(name) in shown
    assert "\u202e" not in shown


def test_a_page_repeats_and_its_nonce_depends_on_the_names(tmp_path: Path) -> None:
    pages = {}
    for place, dataset in (("one", "a"), ("two", "a"), ("three", "b")):
        (tmp_path / place).mkdir()
        write_page(tmp_path / place, audit(dataset=dataset), None)
        pages[place] = (tmp_path / place / "index.html").read_bytes()
    assert pages["one"] == pages["two"]
    nonces = {re.search(rb"nonce-([\w+/]+)", page)[1] for page in pages.values()}  # type: ignore[index]
    assert len(nonces) == 2


def test_the_script_writes_text_alone() -> None:
    source = (writing.HERE / "page.js").read_text()
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|XMLHttp|import\("
    assert not re.search(forbidden, source)
    assert "</" not in source


# ----------------------------------------------------------------------------------------------------------- content


def test_suspects_come_by_rank_and_are_cut_into_shards(tmp_path: Path) -> None:
    given = audit(30, top=12, per_page=5, to_review=[3, 28])
    size = write_page(tmp_path, given, None)
    assert size == sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file())
    kept, found = shards(tmp_path), read(tmp_path).data
    assert [len(shard["score"]) for shard in kept] == [5, 5, 3]
    samples = [*range(29, 17, -1), 3]
    assert [rank for shard in kept for rank in shard["rank"]] == [*range(1, 13), 27]
    assert kept[0]["issue"] == [1] * 5
    assert kept[1]["issue"] == [0] * 5
    assert kept[0]["flagged"] == [int(i % 4 == 0) for i in samples[:5]]
    assert kept[2]["likeliest"][2] == [[1, 0.75], [0, 0.25]]
    suspects = found["suspects"]
    assert suspects["ranked"] == 12
    assert suspects["sample"] == list(map(str, samples))
    assert suspects["client"] == [i % 2 for i in samples]
    assert suspects["given"] == [i % 3 for i in samples]
    assert suspects["predicted"] == [(i + 1) % 3 for i in samples]
    assert suspects["row"] == [i % 2 for i in samples]
    cuts = [m / 100 for m in range(101)]
    assert suspects["firstCut"] == [next(m for m in range(101) if 1 - (i + 1) / 31 < cuts[m]) for i in samples]
    assert [samples[i] for i in suspects["review"]] == [3, 28]


def test_counts_below_every_cut_are_those_of_the_clients(tmp_path: Path) -> None:
    given = audit(30, clients=3)
    write_page(tmp_path, given, None)
    for one, changes in zip(given.by_client, read(tmp_path).data["clients"], strict=True):
        pairs = dict(zip(changes[::2], changes[1::2], strict=True))
        assert [max((n for at, n in pairs.items() if at <= cut), default=0) for cut in range(101)] == list(one.below)


def test_a_suspect_close_to_a_cut_is_shown_where_it_is_counted(tmp_path: Path) -> None:
    """A score of 0.4999997 lies below 0.5, whichever digits of it anybody shows; one of 1 lies below no cut."""
    given = audit(4)
    scores = np.array([1.0, 0.5, 0.4999997, 0.1])
    below = below_cuts(scores, np.zeros(4, np.int64), 1).sum(0)
    curve = replace(given.precision, below=tuple(below.tolist()))
    write_page(tmp_path, replace(given, samples=replace(given.samples, suspicion_score=scores), precision=curve), None)
    found = read(tmp_path).data
    assert found["suspects"]["firstCut"] == [11, 50, 51, 101]
    for m in range(101):
        assert sum(first <= m for first in found["suspects"]["firstCut"]) == found["below"][m]


def test_the_curve_is_set_apart_where_nothing_is_suspected(tmp_path: Path) -> None:
    """The line is drawn boldly up to the last sample whose label is not the likeliest, be it an issue or not."""
    given = audit(10, issues=2)
    predicted = np.where(np.arange(10) < 4, 1 - given.samples.given, given.samples.given)
    scores = np.array([0.05, 0.1, 0.2, 0.305, 0.4, 0.6, 0.7, 0.8, 0.9, 1.0])
    curve = replace(given.precision, expected=(None, None, *[0.5] * 60, None, *[1.0] * 38))
    samples = replace(given.samples, predicted=predicted, suspicion_score=scores)
    write_page(tmp_path, replace(given, samples=samples, precision=curve), None)
    text = (tmp_path / "index.html").read_text()
    spans = {
        which: [
            (points.split()[0].split(",")[0], points.split()[-1].split(",")[0])
            for points in re.findall(rf'<polyline points="(\S+ [^"]*\S+)" class="{which}"', text)
        ]
        for which in ("precision", "beyond")
    }
    assert spans["precision"][0] == ("2", "31")
    assert spans["beyond"][:2] == [("31", "61"), ("63", "100")]


def test_without_scripts_the_tables_and_the_first_hundred_are_there(tmp_path: Path) -> None:
    write_page(tmp_path, audit(250, clients=3, issues=120), None)
    page = read(tmp_path)
    assert [names for _, names in page.tags].count(("class",)) > 100
    assert sum(tag == "li" and v == "card" for tag, name, v in page.values if name == "class") == 100
    shown = " ".join(page.texts)
    assert "client 0 · " in shown
    assert re.search(r"\b250\b.*labels of 3 clients.*\b120\b.*issues: 48.0\u202f%.*91\u202f%", shown, re.S)
    assert sum(name == "data-below" for _, names in page.tags for name in names) == 3
    assert sum(names[:3] == ("type", "data-given", "data-predicted") for _, names in page.tags) == 3


def of_clients(given: Audit, folder: Path) -> Read:
    """The table of clients on a page."""
    with TemporaryDirectory(dir=folder) as place:
        write_page(Path(place), given, None)
        whole = (Path(place) / "index.html").read_text(encoding="utf-8")
    found = Read()
    found.feed(whole[whole.index('<h2 id="clients-title">') : whole.index('<h2 id="pairs-title">')])
    return found


def test_of_many_clients_those_with_the_most_issues_are_shown_in_this_order(tmp_path: Path) -> None:
    issues = np.random.default_rng(0).integers(0, 40, 1100)
    given = audit(2200, clients=1100)
    rows = tuple(replace(one, samples=40, issues=int(n)) for one, n in zip(given.by_client, issues, strict=True))
    most = np.lexsort((np.arange(1100), -issues))[:1000]
    page = of_clients(replace(given, by_client=rows), tmp_path)
    assert [int(value) for _, name, value in page.values if name == "data-client"] == most.tolist()
    page = of_clients(replace(given, by_client=rows[:1000]), tmp_path)
    assert [int(value) for _, name, value in page.values if name == "data-client"] == list(range(1000))


def test_how_many_labels_are_wrong_stands_beside_how_many_are_listed(tmp_path: Path) -> None:
    given = audit(720, client_names=["north", "south"])
    north, south = given.by_client
    rows = (
        replace(north, wrong=WrongLabels(54.4, 38, 71), issues=61),
        replace(south, wrong=WrongLabels(0.6, 0, 4, 20)),
    )
    page = of_clients(replace(given, by_client=rows), tmp_path)
    heads = [word for word in page.texts if word in ("client", "samples", "wrong", "issues", "rate", "below cut")]
    assert heads == ["client", "samples", "wrong", "issues", "below cut"]
    assert [value for _, name, value in page.values if name == "title"] == [
        "About 54 of 360 labels are wrong (38 to 71); 61 are listed",
        "About 1 of 360 labels are wrong (0 to 4, by 20 issues judged at random); 3 are listed",
    ]
    assert page.texts[page.texts.index("54 ") :][:3] == ["54 ", "38 to 71", "61"]
    ends = {name: [float(v) for e, n, v in page.values if (e, n) == ("line", name)] for name in ("x1", "x2")}
    assert ends == {"x1": [10.6, 0.0], "x2": [19.7, 1.1]}, "shares of 360"


def test_where_nothing_is_known_of_wrong_labels_nothing_is_shown(tmp_path: Path) -> None:
    page = of_clients(audit(), tmp_path)
    assert "wrong" not in page.texts
    assert "The share of issues is not the share of wrong labels." in " ".join(page.texts)
    assert not [value for _, name, value in page.values if name == "title"]
    one, _ = audit().by_client
    page = of_clients(replace(audit(), by_client=(replace(one, wrong=WrongLabels(1, 0, 2)), one)), tmp_path)
    assert page.texts.count("–") == 3, "one number is unknown, and two counts below the cut are the script's"


def test_the_head_tells_how_many_labels_are_wrong(tmp_path: Path) -> None:
    write_page(tmp_path, replace(audit(600), wrong=WrongLabels(1234.4, 900, 1500)), None)
    shown = " ".join(read(tmp_path).texts)
    assert "1,234 are expected to be wrong (95 % interval: 900 to 1,500)" in shown
    assert "it is not how many are listed" in shown
    (tmp_path / "judged").mkdir()
    write_page(tmp_path / "judged", replace(audit(600), wrong=WrongLabels(12, 9, 15, 50)), None)
    assert "(95 % interval: 9 to 15, by review)" in " ".join(read(tmp_path / "judged").texts)


def test_many_clients_and_many_classes_are_cut_short(tmp_path: Path) -> None:
    given = audit(2200, clients=1100, classes=[f"k{i}" for i in range(150)], issues=2100)
    write_page(tmp_path, given, None)
    page = read(tmp_path)
    assert sum("data-client" in names for _, names in page.tags) == 1000
    assert sum("data-given" in names for _, names in page.tags) == 100
    assert "audit.json has all 1,100" in " ".join(page.texts)


@pytest.mark.parametrize(("cut", "expected"), [(None, 0.39), (0.2, 0.2), (0.0, 0.0)])
def test_the_slider_begins_at_the_cut_of_the_audit_or_with_its_issues(
    cut: float | None, expected: float, tmp_path: Path
) -> None:
    """Of 12 samples, the fifth in rank has a score of 5/13 = 0.385, the first cut above which is 0.39."""
    write_page(tmp_path, replace(audit(), cut=cut), None)
    values = dict(v[1:] for v in read(tmp_path).values if v[0] == "input")
    assert float(values["value"]) == pytest.approx(100 * expected)
    assert values["max"] == "100"


def test_limits_are_told(tmp_path: Path) -> None:
    write_page(tmp_path, audit(600, label_privacy=8.0, notes=("a note of the audit",)), None)
    shown = " ".join(read(tmp_path).texts)
    for words in (
        "the model has seen these samples",
        "A note of the audit.",
        "easier than the clients' data makes it too high",
        "below 1 in 300 is invisible: up to 2.0 wrong ones",
        "Show it only to people who may see these data",
        "The label privacy of ε = 8 covers these messages only: the model itself has learned from the labels",
    ):
        assert words in shown, words


def test_where_nothing_is_an_issue_the_page_says_so(tmp_path: Path) -> None:
    for issues in (0, 1):
        (tmp_path / str(issues)).mkdir()
        write_page(tmp_path / str(issues), audit(issues=issues), None)
        assert ("Nothing stands out." in " ".join(read(tmp_path / str(issues)).texts)) == (issues == 0)


def test_a_page_that_grows_too_large_is_refused_unless_forced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "MOST_BYTES", 1000)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with pytest.raises(UserError, match=r"--top \(they are 40 now\) .* --thumbnails, or add --force"):
        write_page(tmp_path / "a", audit(40, per_page=10), None)
    assert write_page(tmp_path / "b", audit(40, per_page=10, force=True), None) > 1000


@pytest.mark.slow
def test_a_page_of_a_million_samples_is_small_and_soon_written(tmp_path: Path) -> None:
    """What a browser reads before the first suspects are shown does not grow with the samples."""
    given = audit(10**6, clients=1000, issues=2 * 10**5, classes=[f"class {k}" for k in range(10)])
    begun = time.process_time()
    write_page(tmp_path, given, None)
    assert time.process_time() - begun < 20
    assert (tmp_path / "index.html").stat().st_size < 2 * 10**6
    assert len(list((tmp_path / "pages").iterdir())) == 20


# -------------------------------------------------------------------------------------------------------- thumbnails


def test_thumbnails_are_in_the_shards_of_the_first_suspects(tmp_path: Path) -> None:
    """Pixel values are divided by the data set's scale, and the thumbnail of a sample is its own."""
    pixels = torch.arange(12, dtype=torch.uint8).reshape(12, 1, 1, 1).expand(12, 1, 8, 8).contiguous()
    write_page(tmp_path, audit(12, per_page=5, thumbnails=7), data_set(TensorImages(pixels), scale=16.0))
    images = [uri for shard in shards(tmp_path) for uri in shard["image"]]
    assert len(images) == 7
    for uri, sample in zip(images, range(11, 4, -1), strict=True):
        image = image_of(uri)
        assert (image.format, image.mode, image.size) == ("PNG", "L", (8, 8))
        assert image.getpixel((3, 3)) == round(sample / 16 * 255)
    page = read(tmp_path)
    assert [v for tag, name, v in page.values if (tag, name) == ("img", "src")] == images
    assert page.data["pictured"] == 7


def test_a_page_may_have_no_thumbnails(tmp_path: Path) -> None:
    write_page(tmp_path, audit(12, thumbnails=0), data_set(TensorImages(torch.zeros(12, 5, 8, 8))))
    assert shards(tmp_path)[0]["image"] == []
    assert "img" not in dict(read(tmp_path).tags)


def test_images_that_cannot_be_shown_are_refused() -> None:
    with pytest.raises(UserError, match=r"5 channels.*--thumbnails none.*--formats csv,json"):
        check_pictures(data_set(TensorImages(torch.zeros(1, 5, 8, 8))))


def files(folder: Path, *names: str) -> Dataset:
    images = ImageFiles(folder, names, np.zeros(len(names), np.int64), (8, 8), (8, 8))
    return data_set(images)


def test_large_images_become_small_and_keep_their_proportions(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (300, 600, 3), np.uint8)).save(tmp_path / "wide.jpg")
    Image.fromarray(rng.integers(0, 255, (50, 20), np.uint8)).save(tmp_path / "grey.png")
    wide, grey = map(image_of, thumbnails(files(tmp_path, "wide.jpg", "grey.png"), [0, 1]))
    assert (wide.format, wide.size) == ("WEBP", (LONGEST, LONGEST // 2))
    assert (grey.format, grey.mode, grey.size) == ("PNG", "L", (20, 50))


def test_numbers_of_any_range_are_shown_as_greys() -> None:
    """Standardised ones would be black below 0 and white above 1."""
    ramp = torch.linspace(0, 1, 64).reshape(1, 1, 8, 8)

    def shown(pixels: Any) -> list[int]:
        (uri,) = thumbnails(data_set(TensorImages(pixels), scale=1.0), [0])
        return np.asarray(image_of(uri), np.int64).reshape(-1).tolist()

    plain = [round(255 * value) for value in ramp.flatten().tolist()]
    assert shown(ramp) == plain
    assert shown(0.5 * ramp) == pytest.approx([value / 2 for value in plain], abs=1), "dark stays dark"
    assert shown(5 * ramp - 2) == pytest.approx(plain, abs=4)


def test_a_thumbnail_has_pixels_and_nothing_else(tmp_path: Path) -> None:
    """Neither comments, nor a profile, nor where a photograph was taken; but it stands upright."""
    photo = Image.new("RGB", (200, 100), "red")
    exif = photo.getexif()
    exif[0x0112], exif[0x010E] = 6, "SECRET description"
    photo.save(tmp_path / "a.jpg", exif=exif, comment=b"SECRET comment", icc_profile=b"SECRET profile" * 20)
    tiny, text = Image.new("RGB", (4, 4), "red"), PngInfo()
    text.add_text("SECRET", "SECRET")
    tiny.save(tmp_path / "b.png", pnginfo=text, icc_profile=b"SECRET profile" * 20)
    images = [image_of(uri) for uri in thumbnails(files(tmp_path, "a.jpg", "b.png"), [0, 1])]
    assert [image.size for image in images] == [(32, 64), (4, 4)]
    assert [image.format for image in images] == ["WEBP", "PNG"]
    for image in images:
        assert not image.info.keys() - {"loop", "background", "timestamp", "duration"}
        assert not image.getexif()


def test_what_cannot_be_read_has_no_thumbnail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_PIXELS", 99)
    Image.new("L", (10, 10)).save(tmp_path / "large.png")
    Image.new("L", (9, 11)).save(tmp_path / "right.png")
    (tmp_path / "drawing.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>")
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff")
    names = ("missing.png", "large.png", "drawing.svg", "broken.jpg", "right.png")
    found = thumbnails(files(tmp_path, *names), range(5))
    assert [uri is None for uri in found] == [True, True, True, True, False]


def test_no_path_of_this_machine_is_on_a_page(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "page").mkdir()
    Image.new("RGB", (90, 90)).save(tmp_path / "images" / "0.png")
    names = ["0.png", "1.png"]
    write_page(tmp_path / "page", audit(2, names=names, clients=1), files(tmp_path / "images", *names))
    content = b"".join(file.read_bytes() for file in (tmp_path / "page").rglob("*") if file.is_file())
    assert b"0.png" in content
    assert str(tmp_path).encode() not in content


def test_each_cell_of_the_matrix_asks_for_its_own_pair(tmp_path: Path) -> None:
    """Both directions of a pair have numbers of their own."""
    found = audit(40, classes=("ant", "bee", "cat"), issues=30)
    write_page(tmp_path, found, None)
    text = (tmp_path / "index.html").read_text()
    cell = re.compile(r'<button type="button" data-given="(\d)" data-predicted="(\d)">(\d+)</button>')
    shown = {(int(given), int(predicted)): int(count) for given, predicted, count in cell.findall(text)}
    expected = {(one.given, one.predicted): one.issues for one in found.by_pair if one.issues}
    assert shown == expected
    assert any(shown.get((k, j)) != count for (j, k), count in shown.items()), "the toy tells directions apart"


# ------------------------------------------------------------------------------------------------------------- texts


def test_texts_are_shown_in_place_of_pictures(tmp_path: Path) -> None:
    """Of a hostile kind, too: as text, not as elements; a long one is cut."""
    given = audit(2 * K, issues=2 * K)
    texts = [*HOSTILE, *["data:image/png;base64,AAAA", "a" * 700, ""], *["x"] * (K - 3)]
    rows = TensorImages(torch.zeros(2 * K, 3))
    labels = np.zeros(2 * K, np.int64)
    data = Dataset("toy", ("a", "b"), rows, rows, labels, Rows(3), labels, texts=texts)
    (tmp_path / "texts").mkdir()
    write_page(tmp_path / "texts", given, data)
    page, kept = read(tmp_path / "texts"), shards(tmp_path / "texts")
    assert page.data["worded"] is True
    position = given.samples.position[given.detailed].tolist()
    shown = [text for shard in kept for text in shard["image"]]
    wanted = [texts[i] if len(texts[i]) <= 600 else f"{'a' * 600} ..." for i in position]
    assert shown == [text or None for text in wanted]
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert len([1 for _, name, value in page.values if (name, value) == ("class", "text")]) == 2 * K - 1
    (tmp_path / "tame").mkdir()
    tame = Dataset(
        "toy", ("a", "b"), rows, rows, labels, Rows(3), labels, texts=["y" if text else "" for text in texts]
    )
    write_page(tmp_path / "tame", given, tame)
    assert page.tags == read(tmp_path / "tame").tags
