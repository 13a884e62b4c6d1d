"""A zip whose list of files is kept as columns has the bytes of one that `zipfile` writes alone."""

from __future__ import annotations

import io
import zipfile

from erasure.zip_directory import Directory, forget_name, new_zip

_FILES = {
    **{f"artifacts/note/art_{number}.json": b'{"text": "%d"}' % number for number in range(300)},
    "record/gespräch.jsonl": b"\xff" * 5_000,
    "empty": b"",
}


def written(archive: zipfile.ZipFile) -> None:
    with archive:
        for number, (name, data) in enumerate(_FILES.items()):
            info = zipfile.ZipInfo(name, date_time=(2026, 1, 1 + number % 2, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED if number % 3 else zipfile.ZIP_STORED
            info.external_attr = 0o600 << 16
            with archive.open(info, "w", force_zip64=number % 5 > 0) as out:
                out.write(data)
            if isinstance(archive.filelist, Directory):
                forget_name(archive)


def test_a_zip_has_the_same_bytes_whichever_way_its_list_is_kept() -> None:
    plain, columns = io.BytesIO(), io.BytesIO()
    written(zipfile.ZipFile(plain, "w"))
    written(new_zip(columns))
    assert columns.getvalue() == plain.getvalue()
    with zipfile.ZipFile(columns) as archive:
        assert archive.testzip() is None
        assert {name: archive.read(name) for name in archive.namelist()} == _FILES
