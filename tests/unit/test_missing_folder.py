"""A folder that the script writes to and that does not exist: no data are missing. The texts are real ones."""

from __future__ import annotations

import pytest

from orchestrator.diagnosis import transcript
from orchestrator.diagnosis.engine import diagnose
from orchestrator.output.finding import Finding

IN_TORCH = '  File "/v/lib/python3.11/site-packages/torch/serialization.py", line 828, in __init__\n'
IN_NUMPY = '  File "/v/lib/python3.11/site-packages/numpy/lib/_npyio_impl.py", line 568, in save\n'
IN_PATHLIB = '  File "/usr/lib/python3.11/pathlib.py", line 1044, in open\n'
IO_OPEN = "    return io.open(self, mode, buffering, encoding, errors, newline)\n"
GONE = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"


def first_of(call: str, inner: str, error: str) -> Finding:
    own = f'Traceback (most recent call last):\n  File "/home/ann/train.py", line 9, in main\n    {call}\n'
    lines = transcript.parse_logs([("gpu-01.log", f"step 1 loss 2.0\n{own}{inner}{error}\n")])
    return diagnose(lines).findings[0]


@pytest.mark.parametrize(
    ("call", "inner", "error", "folder"),
    [
        (
            'torch.save(state, "checkpoints/last.pt")',
            IN_TORCH + "    torch._C.PyTorchFileWriter(\n",
            "RuntimeError: Parent directory checkpoints does not exist.",
            "checkpoints",
        ),
        ('log = open("results/log.csv","w")', "", GONE.format("results/log.csv"), "results"),
        ('log = open("results/log.csv", mode="a")', "", GONE.format("results/log.csv"), "results"),
        ('open("/data/out/x.bin", "xb")', "", GONE.format("/data/out/x.bin"), "/data/out"),
        (
            'Path("results/log.txt").write_text("x")',
            '  File "/usr/lib/python3.11/pathlib.py", line 1078, in write_text\n'
            "    with self.open(mode='w', encoding=encoding, errors=errors, newline=newline) as f:\n"
            "         ^^^^^^^^^^\n" + IN_PATHLIB + IO_OPEN,
            GONE.format("results/log.txt"),
            "results",
        ),
        ('with Path("a/b/log.txt").open("w") as file:', IN_PATHLIB + IO_OPEN, GONE.format("a/b/log.txt"), "a/b"),
        ('np.save("out/a.npy", x)', IN_NUMPY + '    file_ctx = open(file, "wb")\n', GONE.format("out/a.npy"), "out"),
        ('x.tofile("out/a.bin")', "", GONE.format("out/a.bin"), "out"),
        ('os.mkdir("runs/exp1/ckpt")', "", GONE.format("runs/exp1/ckpt"), "runs/exp1"),
        (
            'plt.savefig("plots/x.png")',
            '  File "/v/lib/python3.11/site-packages/PIL/Image.py", line 2707, in save\n'
            '    fp = builtins.open(filename, "w+b")\n',
            GONE.format("plots/x.png"),
            "plots",
        ),
        (
            'logging.basicConfig(filename="logs/train.log")',
            '  File "/usr/lib/python3.11/logging/__init__.py", line 1213, in _open\n'
            "    return open_func(self.baseFilename, self.mode,\n",
            GONE.format("/w/logs/train.log"),
            "/w/logs",
        ),
        (
            'frame.to_csv("results/x.csv")',
            '  File "/v/lib/python3.11/site-packages/pandas/io/common.py", line 616, in check_parent_directory\n'
            "    raise OSError(rf\"Cannot save file into a non-existent directory: '{parent}'\")\n",
            "OSError: Cannot save file into a non-existent directory: 'results'",
            "results",
        ),
        (
            'h5py.File("results/x.h5", "w")',
            '  File "h5py/h5f.pyx", line 126, in h5py.h5f.create\n',
            "FileNotFoundError: [Errno 2] Unable to synchronously create file (unable to open file: name = "
            "'results/x.h5', errno = 2, error message = 'No such file or directory', flags = 13, o_flags = 242)",
            "results",
        ),
        (
            'save_file(state, "results/x.safetensors")',
            '  File "/v/lib/python3.11/site-packages/safetensors/torch.py", line 307, in save_file\n'
            "    serialize_file(_flatten(tensors), filename, metadata=metadata)\n",
            "safetensors_rust.SafetensorError: Error while serializing: I/O error: No such file or directory "
            "(os error 2)",
            None,
        ),
    ],
)
def test_a_missing_folder_of_an_output_is_named_with_the_call_that_makes_it(
    call: str, inner: str, error: str, folder: str | None
) -> None:
    first = first_of(call, inner, error)
    assert (first.code, first.confidence) == ("script-exception", "high")
    assert "DDP_ORCH_OUTPUT_DIR" in first.fix
    if folder is not None:
        assert folder in first.message
        assert f'os.makedirs("{folder}", exist_ok=True)' in first.fix


READ_IN_TORCH = (
    '  File "/v/lib/python3.11/site-packages/torch/serialization.py", line 1500, in load\n'
    '    with _open_file_like(f, "rb") as opened_file:\n' + IN_TORCH + "    super().__init__(open(name, mode))\n"
)


@pytest.mark.parametrize(
    ("call", "inner"),
    [
        ('open("data/x.bin")', ""),
        ('open("data/x.bin", "rb")', ""),
        ('open("data/x.bin", "r+")', ""),
        ("file = open(path, mode)", ""),
        ('state = torch.load("data/x.bin")', READ_IN_TORCH),
        ('save(open("data/x.bin"), "w")', ""),
        (
            'shutil.copy("data/x.bin", "w")',
            "  File \"/usr/lib/python3.11/shutil.py\", line 256, in copyfile\n    with open(src, 'rb') as fsrc:\n",
        ),
    ],
)
def test_a_missing_file_that_is_read_stays_a_missing_file(call: str, inner: str) -> None:
    assert first_of(call, inner, GONE.format("data/x.bin")).code == "dataset-missing"
