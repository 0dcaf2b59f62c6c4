"""Which places are fit for SQLite."""

from __future__ import annotations

from pathlib import Path

import pytest

from helion_rt.database.paths import is_network_file_system, make_private_directory

MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
tmpfs /home/me/fast tmpfs rw 0 0
//server/share /mnt/my\\040share cifs rw 0 0
lustre /scratch lustre rw 0 0
bucket /bucket fuse.gcsfuse rw 0 0
short line
/dev/vdb /over ext4 rw 0 0
server:/over /over nfs rw 0 0
""".splitlines()


@pytest.mark.parametrize(
    ("path", "network"),
    [
        ("/var/cache", False), ("/home", True), ("/home/me/.cache/helion_rt", True), ("/home/me/fast/cache", False), ("/homeward", False),
        ("/mnt/my share/cache", True), ("/scratch/x", True), ("/bucket/x", True), ("/over/x", True),
    ],
)  # fmt: skip
def test_the_mount_that_holds_the_path_decides(path: str, network: bool) -> None:
    assert is_network_file_system(Path(path), MOUNTS) is network


def test_the_machine_the_tests_run_on_answers(tmp_path: Path) -> None:
    assert is_network_file_system(tmp_path / "not" / "there") in (True, False)


def test_private_directories(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private_directory(tmp_path / "a" / "b")
    make_private_directory(tmp_path / "a" / "b")
    assert [(p.stat().st_mode & 0o777) for p in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")] == [0o755, 0o700, 0o700]
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(OSError):
            make_private_directory(path)
