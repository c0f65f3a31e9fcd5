import pytest

from limba import vocab
from tasks import vocabularies


def test_it_goes_where_the_command_lives(monkeypatch):
    given = []
    monkeypatch.setattr(vocabularies, "main", given.append)
    assert vocab.main(["build", "--out", "x"]) == 0
    assert given == [["build", "--out", "x"]]


def test_other_commands_are_refused(capsys):
    with pytest.raises(SystemExit):
        vocab.main(["bild"])
    assert "invalid choice: 'bild'" in capsys.readouterr().err
