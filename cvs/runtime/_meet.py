"""Runs where the job will run: whether the nodes reach the head's rendezvous port, tried with one word.

Stands alone, for the oldest Python that an image may hold; cvs sends its text and never imports it.
Arguments: `listen PORT WORD SECONDS COUNT` on the head, `call PORT WORD SECONDS HOST` on every node.
"""

import contextlib
import json
import socket
import sys
import time


def listener(port: int) -> socket.socket:
    """As torch's store listens: on every address, of both families where there are two."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            if family == socket.AF_INET6:
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            made.bind((address, port))
        except OSError as error:
            made.close()
            refused = error
            continue
        made.listen(128)
        return made
    raise refused


def listen(port: int, word: str, deadline: float, count: int) -> str:
    """Say the word to so many callers, or until time is up; why nobody can be answered, or nothing."""
    try:
        heard = listener(port)
    except OSError as error:
        return f"port {port} cannot be listened on: {error.strerror}"
    with heard:
        while count and time.monotonic() < deadline:
            heard.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                caller, _ = heard.accept()
            except OSError:
                break
            with caller:
                caller.settimeout(1)
                with contextlib.suppress(OSError):
                    caller.sendall(word.encode())
                    caller.recv(1)  # the caller closes first: the port is free at once
            count -= 1
    return ""


def call(port: int, word: str, deadline: float, host: str) -> str:
    """Why the head does not answer with the word at this address; empty if it does."""
    told = ""
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host, port), max(deadline - time.monotonic(), 0.01)) as line:
                line.settimeout(max(deadline - time.monotonic(), 0.01))
                said = line.makefile("rb").read(len(word)).decode(errors="replace")
            if said == word:
                return ""
            told = "something else answers there"
        except socket.timeout:
            told = "no answer; a firewall?"
        except OSError as error:
            told = error.strerror or str(error)
        time.sleep(0.1)  # the head may not listen yet
    return told


def main(act: str, port: str, word: str, seconds: str, last: str) -> None:
    """Print what went wrong, as a JSON object."""
    deadline = time.monotonic() + float(seconds)
    if act == "listen":
        told = listen(int(port), word, deadline, int(last))
    else:
        told = call(int(port), word, deadline, last)
    print(json.dumps({"problem": told}))


main(*sys.argv[1:])
