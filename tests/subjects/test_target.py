from __future__ import annotations

import sys
from pathlib import Path

import pytest

from precisionlab.errors import SubjectError
from precisionlab.subjects.target import SUBJECT_MODULE, import_target, parse_target, top_level_lines


def write(folder: Path, text: str, name: str = "model.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(
    ("text", "path", "module", "name"),
    [
        ("model.py", "model.py", SUBJECT_MODULE, ""),
        ("a/model.py:GPT", "a/model.py", SUBJECT_MODULE, "GPT"),
        ("model.py:zoo.GPT", "model.py", SUBJECT_MODULE, "zoo.GPT"),
        (r"C:\work\model.py", r"C:\work\model.py", SUBJECT_MODULE, ""),
        (r"C:\work\model.py:GPT", r"C:\work\model.py", SUBJECT_MODULE, "GPT"),
        ("pkg.mod:subject", None, "pkg.mod", "subject"),
    ],
)
def test_target_splits_at_the_last_colon_that_is_no_drive_letter(text: str, path: str | None, module: str, name: str) -> None:
    target = parse_target(text)
    assert (target.path and str(target.path), target.module, target.name) == (path and str(Path(path)), module, name)


@pytest.mark.parametrize("text", ["model.py:", "model.py:a-b", "not a module", ""])
def test_target_that_names_nothing_says_what_to_write(text: str) -> None:
    with pytest.raises(SubjectError, match="Try: model.py"):
        parse_target(text)


def test_missing_file_names_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "", "my_model.py")
    with pytest.raises(SubjectError, match=r"there is no file .*my_modle.py.* has my_model.py.*Try: .*my_model.py"):
        import_target(parse_target(str(tmp_path / "my_modle.py")))


def test_folder_is_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="is a folder"):
        import_target(parse_target(str(tmp_path)))


def test_syntax_error_is_given_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"model.py:2: syntax error: .*def broken\("):
        import_target(parse_target(write(tmp_path, "x = 1\ndef broken(:\n")))


def test_file_that_is_no_text_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_bytes(b"\x00\x01")
    with pytest.raises(SubjectError, match=r"syntax error|not Python source"):
        import_target(parse_target(str(tmp_path / "model.py")))


def test_missing_import_inside_is_told_apart_from_a_missing_target(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"was found, but it imports 'no_such_thing'.*model.py:2.*Try: install no_such_thing"):
        import_target(parse_target(write(tmp_path, "\nimport no_such_thing\n")))
    with pytest.raises(SubjectError, match="there is no module 'no_such_package'"):
        import_target(parse_target("no_such_package.mod:subject"))


def test_exception_while_importing_names_its_line(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match=r"raises while it is imported \(model.py:2: NameError"):
        import_target(parse_target(write(tmp_path, "x = 1\ny = undefined\n")))


def test_exit_while_importing_is_an_error_not_an_exit(tmp_path: Path) -> None:
    with pytest.raises(SubjectError, match="exits while it is imported.*__main__"):
        import_target(parse_target(write(tmp_path, "import sys\nsys.exit(0)\n")))


def test_main_block_does_not_run(tmp_path: Path) -> None:
    module = import_target(parse_target(write(tmp_path, "ran = __name__\nif __name__ == '__main__':\n    raise SystemExit(5)\n")))
    assert module.ran == SUBJECT_MODULE


def test_neighbours_can_be_imported_and_the_path_is_restored(tmp_path: Path) -> None:
    write(tmp_path, "value = 7", "a_neighbour_of_the_subject.py")
    before = list(sys.path)
    module = import_target(parse_target(write(tmp_path, "from a_neighbour_of_the_subject import value")))
    assert module.value == 7
    assert sys.path == before


def test_dataclasses_and_pickling_find_the_module(tmp_path: Path) -> None:
    text = "import pickle\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: 'int'\nback = pickle.loads(pickle.dumps(A(3)))\n"
    assert import_target(parse_target(write(tmp_path, text))).back.x == 3


def test_top_level_names_have_their_lines(tmp_path: Path) -> None:
    module = import_target(parse_target(write(tmp_path, "a = 1\n\ndef f():\n    inner = 2\n\nclass C:\n    pass\n")))
    assert top_level_lines(module) == {"a": 1, "f": 3, "C": 6}
