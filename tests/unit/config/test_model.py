"""How a config model tells itself for the record, and what it keeps to itself."""

from __future__ import annotations

import json

import pytest
from pydantic import Field, SecretStr, ValidationError

from cvs.config.model import HIDDEN, ConfigModel, shown


class Part(ConfigModel):
    count: int = 3
    words: tuple[str, ...] = ()


class Whole(ConfigModel):
    name: str
    secret: SecretStr | None = None
    variables: dict[str, str] = Field(default_factory=dict)
    part: Part = Part()
    parts: dict[str, Part] = Field(default_factory=dict)


def test_every_key_is_told_with_its_defaults() -> None:
    whole = Whole(name="a", parts={"b": Part(count=4, words=("x", "y"))})
    assert whole.resolved() == {
        "name": "a",
        "secret": None,
        "variables": {},
        "part": {"count": 3, "words": []},
        "parts": {"b": {"count": 4, "words": ["x", "y"]}},
    }


def test_it_is_plain_data() -> None:
    whole = Whole(name="a", secret=SecretStr("s3cret"), part=Part(words=("x",)))
    assert json.loads(json.dumps(whole.resolved())) == whole.resolved()


def test_a_secret_is_hidden_but_not_that_there_is_one() -> None:
    assert Whole(name="a", secret=SecretStr("s3cret")).resolved()["secret"] == HIDDEN


SECRET_NAMES = """
    HF_TOKEN hf_token GITHUB_TOKEN AWS_SECRET_ACCESS_KEY AWS_SESSION_TOKEN MY_SECRET DB_PASSWORD PASSWD
    SSH_PASSPHRASE GOOGLE_APPLICATION_CREDENTIALS WANDB_API_KEY WANDB_APIKEY AZURE_ACCESSKEY wandb.api_key
""".split()


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_variables_whose_names_speak_of_a_secret_are_hidden(name: str) -> None:
    assert shown(name, "s3cret") == HIDDEN
    assert Whole(name="a", variables={name: "s3cret"}).resolved()["variables"] == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "PATH", "NCCL_IB_PKEY", "training.max_steps", "KEYBOARD", "priv_key_file", "passes"],
)
def test_others_are_shown(name: str) -> None:
    assert shown(name, "value") == "value"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "model.max_tokens", "dataset.tokens_per_batch"])
def test_tokens_of_a_language_model_are_no_secret(name: str) -> None:
    """Hidden, a change of such a key would go unseen where two files are compared."""
    assert shown(name, "4096") == "4096"


def test_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Part().count = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    ("url", "written"),
    [
        ("https://me:pw@example.com/a.git", "https://**********@example.com/a.git"),
        ("https://token@example.com/a.git", "https://**********@example.com/a.git"),
        ("ssh://git:pw@example.com/a.git", "ssh://git:**********@example.com/a.git"),
        ("ssh://git@example.com/a.git", "ssh://git@example.com/a.git"),
        ("git@example.com:a.git", "git@example.com:a.git"),
        ("https://example.com/a@b", "https://example.com/a@b"),
    ],
)
def test_credentials_in_an_url_are_not_written_down(url: str, written: str) -> None:
    assert shown("clone_url", url) == written
