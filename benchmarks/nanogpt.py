"""Compare the losses of the bundled trainer with those of nanoGPT's own train.py: same weights, batches and settings.

    git clone https://github.com/karpathy/nanoGPT
    python benchmarks/nanogpt.py --nanogpt nanoGPT

The text is this project's documentation, a byte is a token. The trainer runs with one and with two ranks. nanoGPT draws
its batches by torch.randint, which is replaced here by the samples of the trainer's steps. Needs numpy.
"""

from __future__ import annotations

import argparse
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]

STEPS, BATCH, CONTEXT, CLASSES = 100, 12, 64, 256
MOST = 1e-3  # difference between two losses of the same step
TRAINER = (
    "--model=gpt-tiny", "--data=text", f"--context={CONTEXT}", f"--batch-size={BATCH}", f"--max-steps={STEPS}",
    "--optimizer=adamw", "--lr=0.001", "--min-lr=0.0001", "--schedule=cosine", "--warmup-fraction=0",
    "--weight-decay=0.1", "--betas=0.9,0.95", "--grad-clip=1", "--log-every=1", "--track=none", "--save-every=1000000",
)  # fmt: skip
NANOGPT = (
    "--init_from=resume", "--device=cpu", "--dtype=float32", "--compile=False", "--eval_interval=1000000",
    "--eval_iters=0", "--log_interval=1", "--gradient_accumulation_steps=1", f"--batch_size={BATCH}",
    f"--block_size={CONTEXT}", f"--max_iters={STEPS - 1}", f"--lr_decay_iters={STEPS}", "--warmup_iters=0",
    "--learning_rate=0.001", "--min_lr=0.0001", "--weight_decay=0.1",
)  # fmt: skip
NAMES = (  # of the trainer's weights, as nanoGPT calls them
    (r"^token\.", "transformer.wte."), (r"^position\.", "transformer.wpe."), (r"^norm\.", "transformer.ln_f."),
    (r"^head\.", "lm_head."), (r"^blocks\.", "transformer.h."), (r"\.norm1\.", ".ln_1."), (r"\.norm2\.", ".ln_2."),
    (r"\.attention\.all\.", ".attn.c_attn."), (r"\.attention\.out\.", ".attn.c_proj."), (r"\.up\.", ".mlp.c_fc."),
    (r"\.down\.", ".mlp.c_proj."),
)  # fmt: skip
# Runs train.py with the first tokens of our samples in place of random ones.
WITH_OUR_BATCHES = """
import runpy, sys, torch
starts = iter(torch.load(sys.argv[1]))
torch.randint = lambda *_: next(starts)
sys.argv[:2] = ["train.py"]
sys.path.insert(0, ".")
runpy.run_path("train.py", run_name="__main__")
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True, metavar="FOLDER", help="a checkout of nanoGPT")
    asked = parser.parse_args()
    import results
    from e2e.trainer_ranks import losses, trainings

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(folder)
        theirs = nanogpt_losses(asked.nanogpt.resolve(), folder)
        flags = (*TRAINER, "--data-path=.", "--init-from=init.pt")
        ours = {ranks: losses(trainings(ranks, folder, (*flags, f"--out={ranks}"))[0]) for ranks in (1, 2)}
    differences = {ranks: [abs(a - b) for a, b in zip(each, theirs, strict=True)] for ranks, each in ours.items()}
    for ranks, each in differences.items():
        print(f"{ranks} ranks: {len(each)} steps, largest difference {max(each):.4f}, last {each[-1]:.4f}")
    print(f"losses of nanoGPT: {theirs[0]:.4f} ... {theirs[-1]:.4f}")
    results.write(
        "nanogpt", {"nanogpt": theirs, "trainer": ours, "largest_difference": max(map(max, differences.values()))}
    )
    if max(map(max, differences.values())) > MOST:
        sys.exit(f"the losses differ by more than {MOST}")


def write_inputs(folder: Path) -> None:
    """The text in both formats, the same first weights, and where the samples of each step begin."""
    import numpy as np
    import torch

    from trainer.data import Sampling
    from trainer.model import GPT, SIZES

    text = b"".join(path.read_bytes() for path in sorted((ROOT / "docs").glob("*.md")))
    cut = len(text) * 9 // 10
    for part, content in (("train", text[:cut]), ("val", text[cut:])):
        (folder / f"{part}.txt").write_bytes(content)
        np.frombuffer(content, dtype=np.uint8).astype(np.uint16).tofile(folder / f"{part}.bin")
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": CLASSES}))
    torch.manual_seed(0)
    blocks, heads, width = SIZES["gpt-tiny"]
    model = GPT(blocks, heads, width, vocabulary=CLASSES, context=CONTEXT)
    torch.save(model.state_dict(), folder / "init.pt")
    weights = {their_name(name): value for name, value in model.state_dict().items()}
    shape = {"n_layer": blocks, "n_head": heads, "n_embd": width, "block_size": CONTEXT, "bias": False}
    torch.save({"model": weights, "model_args": {**shape, "vocab_size": CLASSES}}, folder / "weights.pt")
    sampling = Sampling((cut - 1) // CONTEXT, BATCH, 0, 0, 1, 1)
    torch.save([sampling.batch(step) * CONTEXT for step in range(STEPS + 1)], folder / "starts.pt")


def their_name(name: str) -> str:
    for pattern, replacement in NAMES:
        name = re.sub(pattern, replacement, name)
    return name


def nanogpt_losses(checkout: Path, folder: Path) -> list[float]:
    """What train.py prints when it resumes from our weights, with an optimizer that has no state yet."""
    import torch

    sys.path.insert(0, str(checkout))
    from model import GPT, GPTConfig

    saved = torch.load(folder / "weights.pt")
    optimizer = GPT(GPTConfig(**saved["model_args"])).configure_optimizers(0.1, 0.001, (0.9, 0.95), "cpu")
    torch.save({**saved, "optimizer": optimizer.state_dict(), "iter_num": 0, "best_val_loss": 1e9}, folder / "ckpt.pt")
    argv = [sys.executable, "-c", WITH_OUR_BATCHES, str(folder / "starts.pt"), *NANOGPT]
    argv += [f"--out_dir={folder}", f"--dataset={folder}"]
    done = subprocess.run(argv, cwd=checkout, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return [float(loss) for loss in re.findall(r"(?m)^iter \d+: loss (\S+),", done.stdout)]


if __name__ == "__main__":
    main()
