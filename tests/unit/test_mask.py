"""Credentials in command lines of processes that are not the run's."""

from __future__ import annotations

import pytest

from orchestrator.output.mask import credentials_in, hide_credentials


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("python a.py --api-key sk-live-1 --lr 3", "python a.py --api-key *** --lr 3"),
        ("a --hf_token=hf_123 --db-password two", "a --hf_token=*** --db-password ***"),
        ("env WANDB_API_KEY=0123 HF_TOKEN=x python a.py", "env WANDB_API_KEY=*** HF_TOKEN=*** python a.py"),
        ("a --url postgres://ann:hunter2@db/x", "a --url postgres://ann:***@db/x"),
        ("a -password x -- secret.py", "a -password *** -- secret.py"),
    ],
)
def test_credentials_in_a_command_line_are_hidden(command: str, shown: str) -> None:
    assert hide_credentials(command) == shown


@pytest.mark.parametrize(
    "command",
    [
        "a --tokenizer gpt2 --max-tokens 20 --pad-token-id 0 --key-dim 64 --keys a --bypass b",
        "python passwords.py http://localhost:8000/x a@b --secret",
        "a --token --other 3",
    ],
)
def test_other_words_of_a_command_line_are_shown(command: str) -> None:
    assert hide_credentials(command) == command


def test_the_credentials_of_a_command_are_found_to_be_hidden_elsewhere() -> None:
    command = ["a.py", "--api-key", "sk-1", "--lr", "3", "--hf_token=hf 2", "db.password=three", "--token", "--secret"]
    assert credentials_in(command) == ["sk-1", "hf 2", "three", ""]
