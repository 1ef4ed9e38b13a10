"""How a config model tells itself for the record, and what it keeps to itself."""

from __future__ import annotations

import json

import pytest
from pydantic import Field, SecretStr, ValidationError

from cvs.config import AortaConfig, ClusterConfig
from cvs.config.model import (
    HIDDEN,
    ConfigModel,
    blanked,
    is_secret,
    shown,
    shown_argument,
    shown_words,
)
from cvs.config.validation import _ways


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
    GITHUB_PAT PAT MYSQL_PWD db.pwd DB_PASS AUTH BASIC_AUTH HTTP_AUTHORIZATION COOKIE SESSION_COOKIES
    PHP_SESSION SESSION_KEY --api-key hub.access-key CREDENTIAL AWS_CREDENTIALS
""".split()


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_variables_whose_names_speak_of_a_secret_are_hidden(name: str) -> None:
    assert shown(name, "s3cret") == HIDDEN
    assert Whole(name="a", variables={name: "s3cret"}).resolved()["variables"] == {name: HIDDEN}


@pytest.mark.parametrize(
    "name",
    """
    NCCL_DEBUG PATH NCCL_IB_PKEY training.max_steps KEYBOARD priv_key_file passes two_pass PWD OLDPWD NPWDX
    LD_LIBRARY_PATH PATTERN GIT_AUTHOR_NAME XAUTHORITY
    """.split(),
)
def test_others_are_shown(name: str) -> None:
    assert shown(name, "value") == "value"


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "model.max_tokens", "dataset.tokens_per_batch"])
def test_tokens_of_a_language_model_are_no_secret(name: str) -> None:
    """Hidden, a change of such a key would go unseen where two files are compared."""
    assert shown(name, "4096") == "4096"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("Authorization: Bearer s3cret.s3cret==", "Authorization: **********"),
        ("proxy-authorization: Digest s3cret", "proxy-authorization: **********"),
        ("-H 'X-Api-Key: s3cret'", "-H 'X-Api-Key: **********"),
        ("Cookie: a=s3cret; b=s3cret", "Cookie: **********"),
        ("Bearer s3cret", "Bearer **********"),
        ("bearer s3cret", "bearer **********"),
        ("Basic czNjcmV0OnMzY3JldA==", "Basic **********"),
        ("Basic training, bearer", "Basic training, bearer"),
    ],
)
def test_headers_are_not_written_down(value: str, written: str) -> None:
    assert shown("HTTP_HEADER", value) == shown_argument(value) == written
    assert Whole(name="a", part=Part(words=(value,))).resolved()["part"]["words"] == [written]
    assert blanked(value).split() != value.split() if HIDDEN in written else blanked(value) == value


def test_arguments_are_written_down_without_their_secrets() -> None:
    words = {
        "--hf.token=s3cret": f"--hf.token={HIDDEN}",
        "--api-key=s3cret": f"--api-key={HIDDEN}",
        "--steps=3": "--steps=3",
        "--url=https://s3cret@example.com/a=b": f"--url=https://{HIDDEN}@example.com/a=b",
        "--hub-token": "--hub-token",
        "s3cret": HIDDEN,
        "last": "last",
        "--use-auth": "--use-auth",
        "--steps": "--steps",
        "4": "4",
    }
    assert Whole(name="a", part=Part(words=tuple(words))).resolved()["part"]["words"] == [*words.values()]
    assert shown_words("ARGS", " ".join(words)) == " ".join(words.values())


def test_of_the_keys_of_both_files_the_two_secrets_alone_are_hidden() -> None:
    names = [way[-1] for model in (AortaConfig, ClusterConfig) for way in _ways(model)]
    assert [name for name in names if is_secret(name)] == ["password", "priv_key_passphrase"]


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
