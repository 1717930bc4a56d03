"""The common part of the Python APIs: a ledger, and requests that wait until the test releases them."""

import os
import pathlib
import time

FOLDER = pathlib.Path(os.environ["PEER_FOLDER"])
LEDGER = os.open(FOLDER / "ledger.txt", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)


def write(key):
    """Writes one line for each execution, in one write, because processes share the file."""
    os.write(LEDGER, f"{key}\n".encode())


def wait_for(name):
    """Blocks until the test has created the file, for 30 seconds at most."""
    for _ in range(3000):
        if (FOLDER / name).exists():
            return
        time.sleep(0.01)
