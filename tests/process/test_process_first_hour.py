"""The README's first five minutes, typed as they stand there: what is printed for a stranger has to work."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]
HERE = Path(__file__).resolve().parents[2]
PROGRAM = str(Path(sys.executable).with_name("muniment"))
TARGET = "/tmp/muniment-first"


def lines_of_readme() -> list[str]:
    """Every command of the section, without its comment."""
    section = (HERE / "README.md").read_text().partition("## Five minutes")[2].partition("\n## ")[0]
    blocks = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    return [line.partition(" #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


class Terminal:
    """Runs lines as a shell would, with its own environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.words = {"./m": str(folder / "m"), TARGET: str(folder / "first"), "8811": "0"}
        path = f"{Path(PROGRAM).parent}:{os.environ['PATH']}"
        self.env = {"PATH": path, "HOME": str(folder), "AGENT_HOME": str(folder / "first")}
        for kind in ("classes", "stores"):
            text = (HERE / "examples/first" / f"{kind}.yaml").read_text().replace(TARGET, str(folder / "first"))
            (folder / f"{kind}.yaml").write_text(text)
            self.words[f"examples/first/{kind}.yaml"] = str(folder / f"{kind}.yaml")
        self.words["examples/first/agent.py"] = str(HERE / "examples/first/agent.py")

    def run(self, line: str) -> str:
        """Run one line; returns what it printed."""
        for word, meant in self.words.items():
            line = line.replace(word, meant)
        if line.startswith("export "):
            for pair in shlex.split(line)[1:]:
                name, _, value = pair.partition("=")
                if name != "PATH":
                    self.env[name] = value
            return ""
        line = line.replace("python ", f"{sys.executable} ")
        if line.startswith("muniment ") and not set("|<>$;&") & set(line):
            done = forked.run(*shlex.split(line)[1:], env=self.env, cwd=self.folder)
        else:
            command = ["bash", "-c", line]
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, env=self.env, cwd=self.folder, timeout=90
            )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Terminal, list[str]]]:
    """A terminal after the first block, with the server running."""
    terminal = Terminal(tmp_path)
    lines = lines_of_readme()
    server = None
    while lines:
        line = lines.pop(0)
        if line == "make setup":
            continue
        if line.startswith("muniment init"):
            said = json.loads(terminal.run(f"{line} --json"))
            terminal.words |= {f"<{role}>": token for role, token in said["tokens"].items()}
            terminal.words |= {"<log key>": said["log_key"], "<certificate key>": said["certificate_key"]}
            continue
        if line.startswith("muniment serve"):
            command = [PROGRAM, "serve", "--data", terminal.words["./m"], "--port", "0"]
            server = subprocess.Popen(
                command, env=terminal.env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
            break
        terminal.run(line)
    assert server is not None
    assert server.stdout is not None
    address = server.stdout.readline().removeprefix("ready ").strip()
    terminal.words = {"http://127.0.0.1:8811": address, **terminal.words}
    yield terminal, lines
    server.terminate()
    server.wait(30)
    server.stdout.close()


def test_what_the_readme_says_to_type_works_as_it_stands(served: tuple[Terminal, list[str]]) -> None:
    terminal, lines = served
    said: dict[str, str] = {}
    for line in lines:
        words = re.sub(r"^(?:MUNIMENT_TOKEN=\S+ |echo \S+ \| )", "", line).split()
        name = " ".join(words[1:3])
        said[name] = said.get(name, "") + terminal.run(line)
        if name == "request erase":
            found = re.search(r"req_[0-9a-f]+", said[name])
            assert found is not None
            terminal.words["<request>"] = found[0]
    assert "registered art_" in said["examples/first/agent.py"]
    assert "completed" in said["approve <request>"]
    assert (terminal.folder / "certificate.pdf").read_bytes().startswith(b"%PDF")
    assert (terminal.folder / "letter.pdf").read_bytes().startswith(b"%PDF")
    assert "erased" in said["replay conv_71"]
    assert "sound" in said["verify --data"]
    assert not (terminal.folder / "first" / "notes.db").read_bytes().count(b"waits for a refund")
