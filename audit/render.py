"""A transcript for a reader: lines of text, or one page of HTML that loads nothing.

Guarantees: works on the contract's JSON (API.md §5) alone, so a saved answer renders like a fresh one; control
characters of a body never reach a terminal, and no body can become markup. Every entry carries its proof mark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

MARKS: Mapping[str, str] = {
    "verified": "✓",
    "altered": "✗",
    "missing": "∅",
    "erased": "▒",
    "expired": "▒",
    "hidden": "◌",
    "withheld": "·",
    "unanchored": "~",
    "unreadable": "?",
}
_LINE = 160


def text_lines(transcript: Mapping[str, Any], *, width: int = _LINE) -> Iterator[str]:
    """Yield a readable transcript: one block an entry, holes in their place, and what it comes to at the end."""
    holes = {gap["from"]: gap for gap in transcript.get("gaps", []) if gap["kind"] == "position"}
    expected = 0
    for entry in transcript["entries"]:
        position = entry.get("position", expected)
        yield from (_gap_line(holes.pop(at)) for at in sorted(holes) if at < position)
        expected = position + 1
        yield _clip(
            f"{MARKS.get(entry['integrity'], '?')} {position:>4}  {entry.get('at', ''):<27}  {_title(entry)}", width
        )
        for line in _body_lines(entry):
            yield _clip(f"        {line}", width)
    yield from (_gap_line(gap) for gap in holes.values())
    yield from (_gap_line(gap) for gap in transcript.get("gaps", []) if gap["kind"] != "position")
    for repeat in transcript.get("repeats", []):
        yield f"! a recorder used number {repeat['seq']} for {len(repeat['entries'])} entries"
    yield _summary(transcript)


def html_page(transcript: Mapping[str, Any]) -> str:
    """Return one page without script, style sheet or picture from anywhere."""
    rows = []
    for entry in transcript["entries"]:
        body = "<br>".join(escape(line) for line in _body_lines(entry))
        state = escape(str(entry["integrity"]))
        mark = escape(MARKS.get(entry["integrity"], "?"))
        rows.append(
            f"<tr><td>{entry.get('position', '')}</td><td>{escape(str(entry.get('at', '')))}</td>"
            f"<td>{escape(str(entry.get('kind', '')))}</td><td>{mark} {state}</td><td>{body}</td></tr>"
        )
    gaps = "".join(f"<li>{escape(_gap_line(gap))}</li>" for gap in transcript.get("gaps", []))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Transcript</title></head><body>'
        "<h1>Transcript</h1>"
        f"<p>{escape(_summary(transcript))}</p><ul>{gaps}</ul>"
        "<table><thead><tr><th>Position</th><th>At</th><th>Kind</th><th>Proof</th><th>Content</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table><pre>{escape(str(transcript.get('checkpoint') or ''))}</pre>"
        "</body></html>"
    )


def _title(entry: Mapping[str, Any]) -> str:
    about = [str(entry[name]) for name in ("agent", "model", "policy") if entry.get(name)]
    state = "" if entry["integrity"] == "verified" else f" [{entry['integrity']}]"
    return _plain(f"{entry.get('kind', 'unreadable header')}{state}{'  ' + ' · '.join(about) if about else ''}")


def _body_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    if entry.get("because"):
        yield _plain(f"({entry['because']})")
    for part in entry.get("parts", [entry]):
        name = f"{part['name']}: " if "name" in part else ""
        if "body" in part:
            yield from (name + line for line in _said(part["body"]))
        elif "body_raw" in part:
            yield f"{name}(kept exactly as sent, not canonical JSON; base64) {part['body_raw']}"
        elif "blob" in part:
            yield f"{name}({len(part['blob']) * 3 // 4} bytes)"
        elif "parts" in entry:
            yield _plain(f"{name}[{part.get('integrity', '')}] {part.get('because', '')}")


def _said(body: Any) -> Iterator[str]:
    """Yield a body as it reads: the text of a turn as text, anything else as JSON."""
    if isinstance(body, dict):
        for key in ("content", "text"):
            if isinstance(body.get(key), str):
                yield from (_plain(line) for line in body[key].splitlines() or [""])
                rest = {name: value for name, value in body.items() if name != key and value not in (None, "", [], {})}
                if rest:
                    yield _plain(json.dumps(rest, ensure_ascii=False))
                return
    yield _plain(json.dumps(body, ensure_ascii=False))


def _gap_line(gap: Mapping[str, Any]) -> str:
    span = f"{gap['from']}" if gap["from"] == gap["to"] else f"{gap['from']} to {gap['to']}"
    said = {
        "position": f"positions {span} are missing and nothing explains it",
        "repeated": f"position {span} stands there twice",
        "recorder": f"a recorder's numbers {span} are in no stream",
        "closed": f"the stream was closed with more entries than there are: {span} are missing",
    }
    return f"∅ {said.get(str(gap['kind']), span)}"


def _summary(transcript: Mapping[str, Any]) -> str:
    counts: dict[str, int] = {}
    for entry in transcript["entries"]:
        counts[entry["integrity"]] = counts.get(entry["integrity"], 0) + 1
    said = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    whole = "complete" if transcript.get("complete") else "not complete"
    return f"{whole}: {len(transcript['entries'])} entries ({said})" if counts else f"{whole}: no entries"


def _plain(text: str) -> str:
    """Return the text without control characters, which could move a terminal's cursor or colour a lie."""
    return "".join(char if char.isprintable() else "�" for char in text)


def _clip(line: str, width: int) -> str:
    return line if len(line) <= width else line[: width - 1] + "…"
