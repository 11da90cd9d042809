"""Where the trainer's samples come from: files of each kind, made here, and a download."""

from __future__ import annotations

import hashlib
import http.server
import io
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_files import assert_message

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'ddp-orch[trainer]'")

from trainer.config import Config, ConfigError  # noqa: E402
from trainer.datasets import cifar10, load  # noqa: E402

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[2]


def test_a_text_is_cut_into_windows_and_its_end_is_for_testing(tmp_path: Path) -> None:
    text = bytes(range(97, 117)) * 10
    (tmp_path / "text").write_bytes(text)
    data = load(Config(data="text", data_path=str(tmp_path / "text"), context=8), CPU)
    assert (data.train.size, data.test.size, data.classes, data.targets) == (22, 2, 256, 8)
    ((inputs, targets),) = data.train.batches([(0, torch.tensor([0, 21]))])
    assert bytes(inputs[0].tolist()) == text[:8] and bytes(targets[0].tolist()) == text[1:9]
    assert bytes(inputs[1].tolist()) == text[168:176] and bytes(targets[1].tolist()) == text[169:177]


def test_tokens_are_16_bits_each_as_nanogpt_writes_them(tmp_path: Path) -> None:
    for name in ("train", "val"):
        tokens = torch.tensor([50256, 0, 40000, 7, 1, 2, 3, 4, 5], dtype=torch.int32).to(torch.int16)
        (tmp_path / f"{name}.bin").write_bytes(bytes(tokens.view(torch.uint8).tolist()))
    data = load(Config(data="tokens", data_path=str(tmp_path), context=4), CPU)
    ((inputs, targets),) = data.train.batches([(0, torch.tensor([0]))])
    assert inputs.tolist() == [[50256, 0, 40000, 7]] and targets.tolist() == [[0, 40000, 7, 1]]


def test_a_token_beyond_the_vocabulary_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokens.bin").write_bytes(b"\xff\xff" * 100)
    data = load(Config(data="tokens", data_path=str(tmp_path / "tokens.bin"), context=4), CPU)
    with pytest.raises(ValueError, match=r"\b65535\b.*\b50304\b"):
        next(data.train.batches([(0, torch.tensor([0]))]))


@pytest.mark.parametrize(
    ("name", "data", "content"),
    [
        ("csv-of-uneven-lines", "csv", "1,2,3,4,0\n1,2,3,4\n"),
        ("csv-with-a-word", "csv", "1,2,three,4,0\n"),
        ("csv-of-no-square", "csv", "1,2,3,0\n"),
        ("text-too-short", "text", "short"),
        ("folder-that-is-a-file", "folder", ""),
    ],
)
def test_data_that_are_not_what_was_said_are_refused_in_one_line(
    tmp_path: Path, name: str, data: str, content: str
) -> None:
    path = tmp_path / "data"
    path.write_text(content)
    with pytest.raises(ConfigError) as refused:
        load(Config(data=data, data_path=str(path), context=16), CPU)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    assert_message(f"trainer-data/{name}", refused.value, PATH=path, CAUSE=refused.value.__cause__ or path)


# --- images on disk


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Three classes, each of one colour, in pictures of different sizes and kinds."""
    image = pytest.importorskip("PIL.Image")
    for part, count in (("train", 4), ("val", 2)):
        for colour in ("red", "lime", "blue"):
            folder = tmp_path / part / colour
            folder.mkdir(parents=True)
            for number in range(count):
                ending = "jpg" if number % 2 else "png"
                image.new("RGB", (40 + 30 * number, 50), colour).save(folder / f"{number}.{ending}")
            (folder / "README.txt").write_text("not an image")
    return tmp_path


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("augment", [False, True])
def test_images_in_folders_get_the_class_of_their_folder(images: Path, augment: bool, workers: int) -> None:
    config = Config(data="folder", data_path=str(images), image_size=16, augment=augment, workers=workers)
    data = load(config, CPU)
    assert (data.train.size, data.test.size, data.classes) == (12, 6, 3)
    pieces = [(step, torch.tensor([3 * step, 11 - step])) for step in range(4)]
    for (_, samples), (pixels, labels) in zip(pieces, data.train.batches(iter(pieces)), strict=True):
        assert pixels.shape == (2, 3, 16, 16)
        assert labels.tolist() == [int(sample) // 4 for sample in samples]  # blue, lime, red
        assert (2 - pixels.mean(dim=(2, 3)).argmax(dim=1)).tolist() == labels.tolist()


def test_what_chance_does_to_an_image_depends_on_the_step_alone(images: Path) -> None:
    gradient = pytest.importorskip("PIL.Image").linear_gradient("L")
    gradient.save(images / "train/red/0.png")
    config = Config(data="folder", data_path=str(images), image_size=16, augment=True, workers=0)

    def seen(step: int) -> torch.Tensor:
        return next(load(config, CPU).train.batches([(step, torch.tensor([8]))])).inputs

    assert torch.equal(seen(5), seen(5)) and not torch.equal(seen(5), seen(6))


def test_an_image_that_cannot_be_read_is_named(images: Path) -> None:
    (images / "train/red/1.jpg").write_bytes(b"not a JPEG at all")
    data = load(Config(data="folder", data_path=str(images), image_size=16, workers=0), CPU)
    with pytest.raises(RuntimeError, match=r"train/red/1\.jpg: "):
        next(data.train.batches([(0, torch.tensor([9]))]))


# --- CIFAR-10


def archive(records: int) -> bytes:
    """In the form of the real one: a byte of class, then 3072 of the image; here all of them tell the class."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as members:
        for name in (*cifar10.TRAIN, *cifar10.TEST):
            content = b"".join(bytes([label % 10] * (1 + 3072)) for label in range(records))
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    return made.getvalue()


class Mirror(http.server.ThreadingHTTPServer):
    """Serves one archive, and counts how often."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.content, self.served = archive(20), 0
        self.url = f"http://127.0.0.1:{self.server_port}/cifar-10-binary.tar.gz"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Mirror

    def do_GET(self) -> None:
        self.server.served += 1
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with Mirror() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


FETCH = """
import sys
from pathlib import Path
from trainer.datasets import cifar10
cifar10.MD5 = sys.argv[1]
print(cifar10.fetched(Path(sys.argv[2])))
"""


def test_processes_that_want_cifar10_at_once_download_it_once(mirror: Mirror, tmp_path: Path) -> None:
    digest = hashlib.md5(mirror.content).hexdigest()
    command = [sys.executable, "-c", FETCH, digest, str(tmp_path)]
    environ = {"PYTHONPATH": str(ROOT), "CIFAR10_URL": mirror.url, "OMP_NUM_THREADS": "1"}
    wanting = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=120)[0] for process in wanting}
    assert answers == {f"{tmp_path}/cifar-10-binary.tar.gz\n"} and mirror.served == 1


def test_cifar10_is_read_as_its_authors_wrote_it(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(mirror.content)
    config = Config(data="cifar10", data_path=str(tmp_path), augment=True)
    data = load(config, CPU)
    assert (data.train.size, data.test.size, data.classes, data.channels) == (100, 20, 10, 3)
    ((images, labels),) = data.test.batches([(0, torch.tensor([3, 17]))])
    assert labels.tolist() == [3, 7]
    assert torch.allclose(images[1, 2], torch.full((32, 32), (7 - 113.9) / 66.7))
    ((moved, _),) = data.train.batches([(0, torch.arange(100))])
    assert (moved == 0).any()  # what came in at the border


def test_a_damaged_download_is_not_kept(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CIFAR10_URL", mirror.url)
    with pytest.raises(ConfigError, match=r"\bMD5\b.*\bc32a1d.*\bCIFAR10_URL\b"):
        load(Config(data="cifar10", data_path=str(tmp_path)), CPU)
    assert [path.name for path in tmp_path.iterdir()] == [".cifar-10-binary.tar.gz.lock"]
